"""What a model has to do for a token, counted: the bytes it must read, the sums it must make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from lockstep.parity.bench.cache_bytes import cache_bytes
from lockstep.reference.checkpoint.adapters import HEAD, tied_table
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.precision import dtype_named
from lockstep.reference.stores.kinds import CacheOptions

TABLES = ("embed", "wte.", "wpe.")  # in names: a row is looked up, the rest is not read
EXPERTS = ".experts."
CHOSEN = ("num_experts_per_tok", "top_k_experts")
OUTPUTS = ("self_attn.o_proj.weight", "attn.c_proj.weight")  # as wide as all heads are together


@dataclass(frozen=True)
class Work:
    """A token reads `weight_bytes`. `matrices` maps (rows, columns) to how many such a token
    passes through. The head is apart: of a prompt it sees the last token alone. `heads` are
    the widths of attention, by layer."""

    weight_bytes: float
    matrices: dict[tuple[int, int], float]
    head: tuple[int, int]
    heads: tuple[int, ...]

    def operations(self, tokens: int) -> float:
        """Return the multiplications and additions of a prompt, products and attention."""
        layers = sum(2.0 * rows * columns * many for (rows, columns), many in self.matrices.items())
        pairs = tokens * (tokens + 1) / 2
        scores = sum(4.0 * width * pairs for width in self.heads)  # and what they weigh
        return layers * tokens + scores + 2.0 * self.head[0] * self.head[1]


def work_of(checkpoint: Checkpoint, weights: dict[str, Any]) -> Work:
    """Count from the weights as a backend holds them."""
    table, matrices = tied_table(checkpoint), defaultdict[tuple[int, int], float](float)
    read, head, heads = 0.0, (0, 0), []
    for name in checkpoint.names:
        shape: tuple[int, ...] = checkpoint.stored(name).shape
        part = share(checkpoint, name)
        is_head = name == f"{HEAD}.weight" or name == f"{table}.weight"
        if not is_head and any(one in name for one in TABLES):
            continue
        if name.endswith(OUTPUTS):
            heads.append(shape[-1])
        read += part * sum(one.nbytes for one in arrays(weights[name]))
        if is_head:
            head = (shape[0], shape[-1])
        elif len(shape) > 1:
            matrices[shape[-2], shape[-1]] += part * (shape[0] if len(shape) > 2 else 1)
    return Work(read, dict(matrices), head, tuple(heads))


def kept_bytes(model: Any, tokens: int) -> int:
    """Return the bytes of the keys and values that a token reads behind so many others."""
    size = dtype_named(model.dtype).itemsize
    return cache_bytes("sliding", model.config, size, tokens, CacheOptions())


def share(checkpoint: Checkpoint, name: str) -> float:
    """Return the part of a tensor that a token needs: of experts, as many as are chosen."""
    if EXPERTS not in name:
        return 1.0
    config = checkpoint.config
    chosen = next(getattr(config, key) for key in CHOSEN if hasattr(config, key))
    return chosen / config.num_experts


def arrays(weight: Any) -> Iterator[Any]:
    """Yield the arrays of a stored weight: itself, or the parts of a packed one."""
    if not is_dataclass(weight):
        yield weight
        return
    for one in fields(weight):
        if hasattr(value := getattr(weight, one.name), "nbytes"):
            yield value


def buffers(weights: dict[str, Any]) -> list[np.ndarray]:
    """Return all bytes of a model's weights, where they lie, if that is where NumPy can see."""
    return [seen(one) for weight in weights.values() for one in arrays(weight)]


def seen(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    import mlx.core as mx

    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
