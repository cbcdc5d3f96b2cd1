"""One weight, packed tile by tile: codes when they are asked for, scales as a by-product."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.writers.safetensors_stream import Planned
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.packed import Packing
from lockstep.reference.checkpoint.quantization import AFFINE
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops import dequantize

FLOAT32 = np.dtype(np.float32)
TILE = 1 << 17  # weights a thread packs at a time: they stay in its cache
SPAN = 1 << 24  # weights that are read at a time


@dataclass
class PackedModule:
    """The two or three tensors of a packed module; scales wait from the codes' turn to theirs."""

    checkpoint: Checkpoint
    name: str
    packing: Packing
    rest: dict[str, np.ndarray] = field(default_factory=dict)

    def planned(self) -> dict[str, Planned]:
        """Return what to write, by kind: weight, scales and, in the affine mode, biases."""
        how, dtype = self.packing, self.checkpoint.stored(self.name).dtype
        *rows, columns = self.checkpoint.stored(self.name).shape
        words, groups = (*rows, columns * how.bits // 32), (*rows, columns // how.group_size)
        out = {"weight": Planned("U32", words, self._weight)}
        for kind in how.parts[1:]:
            tag = dtype if how.mode == AFFINE else "U8"
            out[kind] = Planned(tag, groups, partial(self._rest, kind))
        return out

    def tensor(self) -> QuantizedTensor | MinifloatTensor:
        """Return the packed matrix, or stack of them, as one."""
        words, how = self._weight(), self.packing
        if how.mode != AFFINE:
            return MinifloatTensor(words, self.rest["scales"], how.mode)
        parts = self.rest["scales"], self.rest["biases"]
        return QuantizedTensor(words, *parts, how.bits, how.group_size, how.mode)

    def _weight(self) -> np.ndarray:
        spans = [self._packed(start, stop) for start, stop in self._spans()]
        self.rest = {
            kind: np.concatenate([getattr(one, kind) for tiles in spans for one in tiles])
            for kind in self.packing.parts[1:]
        }
        if not all(np.isfinite(values.astype(np.float32)).all() for values in self.rest.values()):
            what = (
                "cannot be packed: it has numbers that are not finite, or too large for its scales"
            )
            raise InputError(self.checkpoint.path, f"tensor {show(self.name)} {what}")
        return np.concatenate([one.packed for tiles in spans for one in tiles])

    def _rest(self, kind: str) -> np.ndarray:
        """Return what codes left behind, once: the writer has wide types first, so codes."""
        if kind not in self.rest:
            self._weight()
        return self.rest.pop(kind)

    def _spans(self) -> list[tuple[int, int]]:
        shape = self.checkpoint.stored(self.name).shape
        step = max(1, SPAN // prod(shape[1:]))
        return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]

    def _packed(self, start: int, stop: int) -> list[Any]:
        """Pack rows of a matrix, or matrices of a stack; NumPy works in several threads at once."""
        rows = unpacked(self.checkpoint.tensor_rows(self.name, start, stop))
        step = max(1, TILE // prod(rows.shape[1:]))
        tiles = [rows[first : first + step] for first in range(0, len(rows), step)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(partial(pack, self.packing), tiles))


def unpacked(rows: Any) -> np.ndarray:
    """Return numbers as they are; of packed ones the values, in the type of their scales."""
    if isinstance(rows, np.ndarray):
        return rows
    scales = getattr(rows, "scales", None)
    kept = scales.dtype if scales is not None and scales.dtype != np.uint8 else FLOAT32
    stack = [rows] if len(rows.shape) == 2 else [rows[index] for index in range(rows.shape[0])]
    made = [dequantize(one, rows=slice(None), dtype=FLOAT32).astype(kept) for one in stack]
    return made[0] if len(rows.shape) == 2 else np.stack(made)


def pack(packing: Packing, tile: np.ndarray) -> Any:
    """Return numbers (..., K) in a packing."""
    from lockstep.fast.packing import quantize_affine, quantize_minifloat

    if packing.mode != AFFINE:
        return quantize_minifloat(tile, mode=packing.mode)
    return quantize_affine(tile, bits=packing.bits, group_size=packing.group_size)
