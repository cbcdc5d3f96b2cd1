"""The operations of `reference/ops` in MLX: fused kernels on a GPU, its fallbacks on a CPU.

Nothing here evaluates anything; a step of a model is one graph.
"""

from lockstep.fast.ops.add import add
from lockstep.fast.ops.attention import attention
from lockstep.fast.ops.attention_context import attention_context
from lockstep.fast.ops.attention_scores import attention_scores
from lockstep.fast.ops.causal_mask import causal_mask
from lockstep.fast.ops.concatenate import concatenate
from lockstep.fast.ops.dequantize_affine import dequantize_affine
from lockstep.fast.ops.embedding import embedding
from lockstep.fast.ops.heads_first import heads_first
from lockstep.fast.ops.linear import linear
from lockstep.fast.ops.merge_heads import merge_heads
from lockstep.fast.ops.multiply import multiply
from lockstep.fast.ops.rms_norm import rms_norm
from lockstep.fast.ops.rope import rope
from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.ops.silu import silu
from lockstep.fast.ops.softmax import softmax
from lockstep.fast.ops.split_heads import split_heads
from lockstep.fast.ops.swiglu import swiglu
from lockstep.fast.ops.take_rows import take_rows

__all__ = [
    "add",
    "attention",
    "attention_context",
    "attention_scores",
    "causal_mask",
    "concatenate",
    "dequantize_affine",
    "embedding",
    "heads_first",
    "linear",
    "merge_heads",
    "multiply",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "silu",
    "softmax",
    "split_heads",
    "swiglu",
    "take_rows",
]
