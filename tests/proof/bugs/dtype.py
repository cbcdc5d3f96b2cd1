"""Bugs of number formats."""

import math

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import Subject, bug
from tests.proof.seams import wrap


def stored_half(subject: Subject) -> bool:
    return subject.config.dtype == torch.bfloat16 and not subject.packed and traits.rope(subject)


@bug("bf16-read-as-fp16", site="query bytes", stage="weights", when=stored_half)
def read_as_fp16(port: Port) -> None:
    """Take the bits of one tensor in bfloat16 for float16."""
    weight = port.parts("q_proj", layers="one")[0].weight
    weight.copy_(weight.to(torch.bfloat16).view(torch.float16))


@bug("sdpa-scale-folded-half", site="attention scale", when=traits.anywhere)
def scale_folded(port: Port) -> None:
    """Round the scale to bfloat16 after folding in what turns powers of e into powers of 2."""
    for attention in port.attentions():
        folded = torch.tensor(attention.scaling / math.log(2)).to(torch.bfloat16)
        attention.scaling = float(folded) * math.log(2)


@bug("logits-half-precision", site="logits", when=traits.anywhere, dtypes=("float32", "float16"))
def logits_half(port: Port) -> None:
    wrap(port.model.lm_head, lambda head, x: head(x).to(torch.bfloat16).to(x.dtype))


@bug("tf32-or-fast-matmul", site="matmul", when=traits.anywhere, dtypes=("float32",))
def fast_matmul(port: Port) -> None:
    """Keep ten bits of what is multiplied, as TF32 does."""

    for module in port.model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            module.weight = nn.Parameter(ten_bits(module.weight))
            wrap(module, lambda multiply, x: multiply(ten_bits(x)))


def ten_bits(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest number with ten bits after the point."""
    bits = x.view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
