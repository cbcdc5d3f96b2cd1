"""A norm as its statistics and its gain, each of which can be got wrong by itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Unit = Callable[[torch.Tensor, float], torch.Tensor]


class NormSeam:
    """The forward of one norm: `unit(x, eps)` of float32 rows, then `gain(unit, dtype)`.

    The statistics are an RMSNorm's unless others are given, also in the place of a LayerNorm.
    """

    def __init__(self, norm: Any):
        self.norm = norm
        self.unit: Unit = powered if hasattr(norm, "with_scale") else scaled
        self.gain = self.gain_after if rounds_last(norm) else self.gain_before

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain(self.unit(x.float(), eps_of(self.norm)), x.dtype)

    def gain_before(self, unit: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Round, then multiply: Llama's order."""
        return self.norm.weight * unit.to(dtype)

    def gain_after(self, unit: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Multiply in float32, then round: Gemma's order, and that of a LayerNorm."""
        weight, bias = getattr(self.norm, "weight", None), getattr(self.norm, "bias", None)
        unit = unit if weight is None else unit * weight.float()
        return (unit if bias is None else unit + bias.float()).to(dtype)


def rounds_last(norm: Any) -> bool:
    return hasattr(norm, "with_scale") or isinstance(norm, nn.LayerNorm)


def norm_seam(norm: Any) -> NormSeam:
    if not isinstance(norm.forward, NormSeam):
        norm.forward = NormSeam(norm)
    return norm.forward


def eps_of(norm: Any) -> float:
    return norm.eps if hasattr(norm, "eps") else norm.variance_epsilon


def set_eps(norm: Any, eps: float) -> None:
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", eps)


def mean_square(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def powered(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide rows by their root mean square, in the operations of Gemma."""
    return x * torch.pow(mean_square(x) + eps, -0.5)


def scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide rows by their root mean square."""
    return x * torch.rsqrt(mean_square(x) + eps)
