"""Every operation of inference, one a file. A namespace like this one is passed to the models.

Whoever wants another arithmetic (a recorder, a fault, another backend) passes another namespace.
A result has the dtype of the first float argument, or the one that is asked for by keyword; each
docstring says where it is rounded.
"""

from lockstep.reference.ops.add import add
from lockstep.reference.ops.attention import attention
from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.causal_mask import causal_mask
from lockstep.reference.ops.concatenate import concatenate
from lockstep.reference.ops.dequantize_affine import dequantize_affine
from lockstep.reference.ops.embedding import embedding
from lockstep.reference.ops.heads_first import heads_first
from lockstep.reference.ops.linear import linear
from lockstep.reference.ops.merge_heads import merge_heads
from lockstep.reference.ops.multiply import multiply
from lockstep.reference.ops.rms_norm import rms_norm
from lockstep.reference.ops.rope import rope
from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.ops.silu import silu
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.ops.split_heads import split_heads
from lockstep.reference.ops.swiglu import swiglu
from lockstep.reference.ops.take_rows import take_rows

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
