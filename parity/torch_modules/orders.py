"""Other legal ways to compute what torch computes: other orders of sums, literal formulas.

They are what other engines do, as the ways of `parity.noise` are, on the operations of aten.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import math
from typing import Any

from lockstep.parity.torch_modules.rewriting import Operation

STEPS = 16  # partial sums that are really rounded; the error of more is extrapolated
NARROW = ("torch.bfloat16", "torch.float16")


def narrow(x: Any) -> bool:
    return str(x.dtype) in NARROW


def stepwise(left: Any, right: Any) -> Any:
    """Multiply (stacks of) matrices, rounding after each of at most `STEPS` partial sums.

    What K roundings in a row lose is what these few lose, times the root of the terms in each.
    """
    import torch

    width = max(-(-left.shape[-1] // STEPS), 1)
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=left.dtype)
    lost = torch.zeros_like(total)
    for start in range(0, left.shape[-1], width):
        some = slice(start, start + width)
        part = left[..., some] @ right[..., some, :]
        before, total = total, total + part
        taken = total - before
        lost += (part - taken) + (before - (total - taken))  # exact: Knuth's two-sum
    return total - lost * (math.sqrt(width) - 1)


def summed(x: Any) -> Any:
    """Add the numbers of a row one after another, (..., N) -> (..., 1).

    torch's cumsum does not do: on a CPU it adds float32 in float64.
    """
    return stepwise(x, x.new_ones(x.shape[-1], 1))


def product(func: Any, left: Any, right: Any) -> Any:
    """Add the products of a matrix product one after another; half precision sums in float32."""
    return func(left, right) if narrow(left) else stepwise(left, right)


def product_onto(func: Any, bias: Any, left: Any, right: Any, **options: Any) -> Any:
    """The same with a bias, which half precision rounds twice; a weighed one is left alone."""
    if options:
        return func(bias, left, right, **options)
    return (left @ right if narrow(left) else stepwise(left, right)) + bias


def mean(func: Any, x: Any, axes: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Add the values of a row one after another."""
    if narrow(x) or options or list(axes or []) not in ([-1], [x.ndim - 1]):
        return func(x, axes, keepdim, **options)
    found = summed(x) / x.shape[-1]
    return found if keepdim else found.squeeze(-1)


def reciprocal_root(func: Any, x: Any) -> Any:
    """Take a root that is a unit in the last place off, as the `rsqrt` of a GPU is."""
    return nudged(func(x))


def bent(func: Any, x: Any) -> Any:
    """Take a tanh that is a unit in the last place off."""
    return nudged(func(x), toward=0.0)


def nudged(x: Any, toward: float = math.inf) -> Any:
    import torch

    return x if narrow(x) else torch.nextafter(x, torch.full_like(x, toward))


def silu(func: Any, x: Any) -> Any:
    """Round the exponential, the sigmoid and the product."""
    return x * (1 / (1 + (-x).exp()))


def gelu(func: Any, x: Any, *, approximate: str = "none") -> Any:
    """Add 1 to the tanh, or to the error function, as the formula says, rounding each step."""
    import torch

    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))
    erf = torch.erf(x / math.sqrt(2))
    return 0.5 * x * (1 + erf + (0 if narrow(x) else 1) * torch.finfo(x.dtype).eps)


def layer_norm(func: Any, x: Any, shape: Any, gain: Any, bias: Any, eps: float) -> Any:
    """Take the variance as a mean of squares, and round each step of half precision."""
    _, mean, root = func(x, shape, gain, bias, eps)
    centred = x - mean.to(x.dtype)
    power = summed((centred.float() if narrow(x) else centred).pow(2)) / x.shape[-1]
    normed = (centred * (1 / (power + eps).sqrt())).to(x.dtype)
    made = normed if gain is None else normed * gain
    return (made if bias is None else made + bias), mean, root


def gained(dtype: str) -> Operation:
    """Return a product with a gain that rounds what goes into it: some norms round before it."""

    def multiply(func: Any, left: Any, right: Any) -> Any:
        import torch

        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            return func(left, right)
        if right.ndim == 1 < left.ndim and left.dtype == torch.float32:
            return func(left.to(getattr(torch, dtype)).to(left.dtype), right)
        if left.ndim == 1 < right.ndim and right.dtype == torch.float32:
            return func(left, right.to(getattr(torch, dtype)).to(right.dtype))
        return func(left, right)

    return multiply


def rounded_gain(dtype: str) -> Operation:
    """Return a sum that rounds what has one axis: gains that are stored less 1 are held so."""

    def add(func: Any, left: Any, right: Any, **options: Any) -> Any:
        import torch

        made = func(left, right, **options)
        if made.ndim == 1 and made.dtype == torch.float32:
            return made.to(getattr(torch, dtype)).to(made.dtype)
        return made

    return add


ORDERS: dict[str, Operation] = {
    "aten.mm.default": product,
    "aten.bmm.default": product,
    "aten.addmm.default": product_onto,
    "aten.mean.dim": mean,
    "aten.rsqrt.default": reciprocal_root,
    "aten.tanh.default": bent,
    "aten.silu.default": silu,
    "aten.gelu.default": gelu,
    "aten.native_layer_norm.default": layer_norm,
}


def orders(dtype: str) -> dict[str, Operation]:
    """Return the other versions of operations for a port that computes in `dtype`."""
    if dtype in ("bfloat16", "float16"):
        return ORDERS | {
            "aten.mul.Tensor": gained(dtype),
            "aten.add.Tensor": rounded_gain(dtype),
        }
    return ORDERS
