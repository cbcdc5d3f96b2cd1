"""The operations of `reference/ops` on NumPy arrays, for machines without a GPU.

The same results by other routes: grouped products instead of repeated heads, tables instead of
shifts, complex numbers instead of pairs.
"""

from lockstep.fast.cpu.add import add
from lockstep.fast.cpu.attention import attention
from lockstep.fast.cpu.attention_context import attention_context
from lockstep.fast.cpu.attention_scores import attention_scores
from lockstep.fast.cpu.causal_mask import causal_mask
from lockstep.fast.cpu.concatenate import concatenate
from lockstep.fast.cpu.dequantize_affine import dequantize_affine
from lockstep.fast.cpu.embedding import embedding
from lockstep.fast.cpu.heads_first import heads_first
from lockstep.fast.cpu.linear import linear
from lockstep.fast.cpu.merge_heads import merge_heads
from lockstep.fast.cpu.multiply import multiply
from lockstep.fast.cpu.rms_norm import rms_norm
from lockstep.fast.cpu.rope import rope
from lockstep.fast.cpu.rope_frequencies import rope_frequencies
from lockstep.fast.cpu.silu import silu
from lockstep.fast.cpu.softmax import softmax
from lockstep.fast.cpu.split_heads import split_heads
from lockstep.fast.cpu.swiglu import swiglu
from lockstep.fast.cpu.take_rows import take_rows

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
