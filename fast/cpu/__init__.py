"""The operations of `reference/ops` on NumPy arrays, for machines without a GPU.

The same results by other routes: grouped products instead of repeated heads, tables instead of
shifts, complex numbers instead of pairs.
"""

from lockstep.fast.cpu.add import add
from lockstep.fast.cpu.add_lora import add_lora
from lockstep.fast.cpu.add_lora_rows import add_lora_rows
from lockstep.fast.cpu.attention import attention
from lockstep.fast.cpu.attention_context import attention_context
from lockstep.fast.cpu.attention_scores import attention_scores
from lockstep.fast.cpu.causal_mask import causal_mask
from lockstep.fast.cpu.column_block import column_block
from lockstep.fast.cpu.concatenate import concatenate
from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.cpu.dequantize_affine import dequantize_affine
from lockstep.fast.cpu.dequantize_blocks import dequantize_blocks
from lockstep.fast.cpu.dequantize_minifloat import dequantize_minifloat
from lockstep.fast.cpu.dora_rescale import dora_rescale
from lockstep.fast.cpu.embedding import embedding
from lockstep.fast.cpu.experts import experts
from lockstep.fast.cpu.gain import gain
from lockstep.fast.cpu.geglu import geglu
from lockstep.fast.cpu.geglu_experts import geglu_experts
from lockstep.fast.cpu.gelu_erf import gelu_erf
from lockstep.fast.cpu.gelu_tanh import gelu_tanh
from lockstep.fast.cpu.heads_first import heads_first
from lockstep.fast.cpu.layer_norm import layer_norm
from lockstep.fast.cpu.linear import linear
from lockstep.fast.cpu.merge_heads import merge_heads
from lockstep.fast.cpu.multiply import multiply
from lockstep.fast.cpu.rms_norm import rms_norm
from lockstep.fast.cpu.rope import rope
from lockstep.fast.cpu.rope_frequencies import rope_frequencies
from lockstep.fast.cpu.rope_frequencies_dynamic import rope_frequencies_dynamic
from lockstep.fast.cpu.rope_frequencies_linear import rope_frequencies_linear
from lockstep.fast.cpu.rope_frequencies_llama3 import rope_frequencies_llama3
from lockstep.fast.cpu.rope_frequencies_longrope import rope_frequencies_longrope
from lockstep.fast.cpu.rope_frequencies_proportional import rope_frequencies_proportional
from lockstep.fast.cpu.rope_frequencies_yarn import rope_frequencies_yarn
from lockstep.fast.cpu.scale import scale
from lockstep.fast.cpu.silu import silu
from lockstep.fast.cpu.softcap import softcap
from lockstep.fast.cpu.softmax import softmax
from lockstep.fast.cpu.split_heads import split_heads
from lockstep.fast.cpu.swiglu import swiglu
from lockstep.fast.cpu.take_rows import take_rows
from lockstep.fast.cpu.top_k_routing import top_k_routing
from lockstep.fast.cpu.unit_norm import unit_norm

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
