"""Every operation of inference, one a file. A namespace like this one is passed to the models.

Whoever wants another arithmetic (a recorder, a fault, another backend) passes another namespace.
A result has the dtype of the first float argument, or the one that is asked for by keyword; each
docstring says where it is rounded.
"""

from lockstep.reference.ops.add import add
from lockstep.reference.ops.add_lora import add_lora
from lockstep.reference.ops.add_lora_rows import add_lora_rows
from lockstep.reference.ops.attention import attention
from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.causal_mask import causal_mask
from lockstep.reference.ops.column_block import column_block
from lockstep.reference.ops.concatenate import concatenate
from lockstep.reference.ops.dequantize import dequantize
from lockstep.reference.ops.dequantize_affine import dequantize_affine
from lockstep.reference.ops.dequantize_blocks import dequantize_blocks
from lockstep.reference.ops.dequantize_minifloat import dequantize_minifloat
from lockstep.reference.ops.dora_rescale import dora_rescale
from lockstep.reference.ops.embedding import embedding
from lockstep.reference.ops.experts import experts
from lockstep.reference.ops.gain import gain
from lockstep.reference.ops.geglu import geglu
from lockstep.reference.ops.geglu_experts import geglu_experts
from lockstep.reference.ops.gelu_erf import gelu_erf
from lockstep.reference.ops.gelu_tanh import gelu_tanh
from lockstep.reference.ops.heads_first import heads_first
from lockstep.reference.ops.layer_norm import layer_norm
from lockstep.reference.ops.linear import linear
from lockstep.reference.ops.merge_heads import merge_heads
from lockstep.reference.ops.multiply import multiply
from lockstep.reference.ops.rms_norm import rms_norm
from lockstep.reference.ops.rope import rope
from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.ops.rope_frequencies_dynamic import rope_frequencies_dynamic
from lockstep.reference.ops.rope_frequencies_linear import rope_frequencies_linear
from lockstep.reference.ops.rope_frequencies_llama3 import rope_frequencies_llama3
from lockstep.reference.ops.rope_frequencies_longrope import rope_frequencies_longrope
from lockstep.reference.ops.rope_frequencies_proportional import rope_frequencies_proportional
from lockstep.reference.ops.rope_frequencies_yarn import rope_frequencies_yarn
from lockstep.reference.ops.scale import scale
from lockstep.reference.ops.silu import silu
from lockstep.reference.ops.softcap import softcap
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.ops.split_heads import split_heads
from lockstep.reference.ops.swiglu import swiglu
from lockstep.reference.ops.take_rows import take_rows
from lockstep.reference.ops.top_k_routing import top_k_routing
from lockstep.reference.ops.unit_norm import unit_norm

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
