"""Keys and values as 8-bit whole numbers, on the device."""

import mlx.core as mx

from lockstep.fast.shapes import Array


def absmax(x: Array, group: int) -> tuple[Array, Array]:
    """Return int8 codes of (..., D) and the scale of each group of dimensions."""
    groups = mx.unflatten(x.astype(mx.float32), -1, (x.shape[-1] // group, group))
    scales = (mx.abs(groups).max(axis=-1) / 127).astype(x.dtype)
    divisors = mx.where(scales == 0, 1, scales).astype(mx.float32)[..., None]
    codes = mx.clip(mx.round(groups / divisors), -127, 127)
    return codes.astype(mx.int8).reshape(x.shape), scales


def from_absmax(codes: Array, scales: Array) -> Array:
    """Return codes times scales, in the dtype of the scales."""
    groups = mx.unflatten(codes.astype(scales.dtype), -1, (scales.shape[-1], -1))
    return (groups * scales[..., None]).reshape(codes.shape)
