"""What all legal ways scatter around: float64, on the weights that a port of some dtype holds."""

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.precision import rounded

FLOAT64 = np.dtype(np.float64)
TILE = 256  # rows of a weight that are widened at a time: they stay in the cache


def exact(ops: Any, held: np.dtype) -> Any:
    """Return operations for float64 on dense weights that are rounded to `held`, the port's dtype.

    Which dtype a port keeps its weights in is its user's choice and no error. The scales of packed
    weights are taken as stored: engines differ there, and the ways have both. `port_dtype` is
    beside the operations, as in `of_port`: it is `held` unless they say another one.
    """

    def linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
        flat = x.reshape(prod(x.shape[:-1]), x.shape[-1])
        out = np.empty((len(flat), weight.shape[0]))
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, weight.shape[0], TILE):
                rows = slice(start, start + TILE)
                np.matmul(flat, widened(ops, weight, rows, held).T, out=out[:, rows])
            out = out.reshape(*x.shape[:-1], weight.shape[0])
            return out if bias is None else out + rounded(bias, held)

    def rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
        return ops.rms_norm(x, rounded(gain, held), eps=eps)

    def layer_norm(x: Any, gain: Any, bias: Any, *, eps: float) -> np.ndarray:
        return ops.layer_norm(x, rounded(gain, held), rounded(bias, held), eps=eps)

    def embedding(tokens: Any, table: Any, *, dtype: np.dtype) -> np.ndarray:
        packed = isinstance(table, Packed)
        return rounded(ops.embedding(tokens, table, dtype=dtype if packed else held), dtype)

    def experts(x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        parts = {"linear": linear, "gated": ops.swiglu}
        return weighted_experts(x, routing, *stacks, per_token=per_token, **parts)

    def dora_rescale(y: Any, weight: Any, bias: Any, *adapter: Any, scale: float) -> np.ndarray:
        weight = weight if isinstance(weight, Packed) else rounded(weight, held)
        bias = None if bias is None else rounded(bias, held)
        return ops.dora_rescale(y, weight, bias, *adapter, scale=scale)

    def geglu_experts(x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        parts = {"linear": linear, "gated": ops.geglu}
        return weighted_experts(x, routing, *stacks, per_token=per_token, **parts)

    def gain(x: Any, weights: Any) -> np.ndarray:
        return ops.gain(x, rounded(weights, held))

    def scale(x: Any, *, by: float) -> np.ndarray:
        return ops.scale(x, by=float(rounded(np.asarray(by), held)))

    changed = {
        "linear": linear, "rms_norm": rms_norm, "layer_norm": layer_norm, "embedding": embedding,
        "experts": experts, "dora_rescale": dora_rescale,
        "geglu_experts": geglu_experts, "gain": gain, "scale": scale,
    }  # fmt: skip
    return SimpleNamespace(**{"port_dtype": held} | vars_of(ops) | changed)


def widened(ops: Any, weight: Any, rows: slice, held: np.dtype) -> np.ndarray:
    if isinstance(weight, Packed):
        return ops.dequantize(weight, rows=rows, dtype=FLOAT64)
    return rounded(weight[rows], held).astype(FLOAT64)


def vars_of(ops: Any) -> dict[str, Any]:
    """Return the operations of a namespace by name, whether it is a module or made by hand."""
    return {name: getattr(ops, name) for name in getattr(ops, "__all__", None) or vars(ops)}
