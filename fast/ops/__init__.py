"""The operations of `reference/ops` in MLX: fused kernels on a GPU, its fallbacks on a CPU.

Nothing here evaluates anything; a step of a model is one graph.
"""

from lockstep.fast.ops.add import add
from lockstep.fast.ops.add_lora import add_lora
from lockstep.fast.ops.add_lora_rows import add_lora_rows
from lockstep.fast.ops.attention import attention
from lockstep.fast.ops.attention_context import attention_context
from lockstep.fast.ops.attention_scores import attention_scores
from lockstep.fast.ops.causal_mask import causal_mask
from lockstep.fast.ops.column_block import column_block
from lockstep.fast.ops.concatenate import concatenate
from lockstep.fast.ops.dequantize import dequantize
from lockstep.fast.ops.dequantize_affine import dequantize_affine
from lockstep.fast.ops.dequantize_blocks import dequantize_blocks
from lockstep.fast.ops.dequantize_minifloat import dequantize_minifloat
from lockstep.fast.ops.dora_rescale import dora_rescale
from lockstep.fast.ops.embedding import embedding
from lockstep.fast.ops.experts import experts
from lockstep.fast.ops.gain import gain
from lockstep.fast.ops.geglu import geglu
from lockstep.fast.ops.geglu_experts import geglu_experts
from lockstep.fast.ops.gelu_erf import gelu_erf
from lockstep.fast.ops.gelu_tanh import gelu_tanh
from lockstep.fast.ops.heads_first import heads_first
from lockstep.fast.ops.layer_norm import layer_norm
from lockstep.fast.ops.linear import linear
from lockstep.fast.ops.merge_heads import merge_heads
from lockstep.fast.ops.multiply import multiply
from lockstep.fast.ops.rms_norm import rms_norm
from lockstep.fast.ops.rope import rope
from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.ops.rope_frequencies_dynamic import rope_frequencies_dynamic
from lockstep.fast.ops.rope_frequencies_linear import rope_frequencies_linear
from lockstep.fast.ops.rope_frequencies_llama3 import rope_frequencies_llama3
from lockstep.fast.ops.rope_frequencies_longrope import rope_frequencies_longrope
from lockstep.fast.ops.rope_frequencies_proportional import rope_frequencies_proportional
from lockstep.fast.ops.rope_frequencies_yarn import rope_frequencies_yarn
from lockstep.fast.ops.scale import scale
from lockstep.fast.ops.silu import silu
from lockstep.fast.ops.softcap import softcap
from lockstep.fast.ops.softmax import softmax
from lockstep.fast.ops.split_heads import split_heads
from lockstep.fast.ops.swiglu import swiglu
from lockstep.fast.ops.take_rows import take_rows
from lockstep.fast.ops.top_k_routing import top_k_routing
from lockstep.fast.ops.unit_norm import unit_norm

__all__ = [
    "add",
    "add_lora",
    "add_lora_rows",
    "attention",
    "attention_context",
    "attention_scores",
    "causal_mask",
    "column_block",
    "concatenate",
    "dequantize",
    "dequantize_affine",
    "dequantize_blocks",
    "dequantize_minifloat",
    "dora_rescale",
    "embedding",
    "experts",
    "gain",
    "geglu",
    "geglu_experts",
    "gelu_erf",
    "gelu_tanh",
    "heads_first",
    "layer_norm",
    "linear",
    "merge_heads",
    "multiply",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_frequencies_dynamic",
    "rope_frequencies_linear",
    "rope_frequencies_llama3",
    "rope_frequencies_longrope",
    "rope_frequencies_proportional",
    "rope_frequencies_yarn",
    "scale",
    "silu",
    "softcap",
    "softmax",
    "split_heads",
    "swiglu",
    "take_rows",
    "top_k_routing",
    "unit_norm",
]
