"""Weights as they will be after 4-bit quantisation, so that training can prepare for it."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any


def fake_quantize(weight: Any, *, bits: int, group_size: int) -> Any:
    """Round a torch weight (rows, columns) to the values MLX's affine quantisation would store.

    Follows `mx.quantize` on bfloat16: the end of the range with the larger magnitude becomes the
    bias and is met exactly, the step is adjusted so that zero is a level, and steps and biases
    are kept in bfloat16. The gradient passes straight through to the unrounded weight.
    """
    import torch

    with torch.no_grad():
        groups = weight.bfloat16().float().unflatten(-1, (-1, group_size))
        step, bias = _affine_grid(groups, levels=2**bits - 1)
        codes = ((groups - bias) / step).round().clamp(0, 2**bits - 1)
        rounded = codes * step.bfloat16().float() + bias.bfloat16().float()
        difference = rounded.flatten(-2) - weight
    return weight + difference


def _affine_grid(groups: Any, *, levels: int) -> tuple[Any, Any]:
    low, high = groups.aminmax(dim=-1, keepdim=True)
    from_low = low.abs() > high.abs()
    step = ((high - low) / levels).clamp(min=1e-7)
    step = step.where(from_low, -step)
    edge = low.where(from_low, high)
    zero_code = (edge / step).round()
    is_zero = zero_code == 0
    step = step.where(is_zero, edge / zero_code.where(~is_zero, 1.0))
    return step, edge.where(~is_zero, 0.0)
