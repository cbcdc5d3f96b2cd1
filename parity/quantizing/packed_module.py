"""One weight, packed tile by tile."""

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
from lockstep.reference.packing.quantize_minifloat import SPOILT

FLOAT32 = np.dtype(np.float32)
TILE = 1 << 17  # weights a thread packs at a time: they stay in its cache
SPAN = 1 << 24  # weights that are read at a time


@dataclass
class PackedModule:
    """The two or three tensors of a packed module, packed when one of them is asked for first."""

    checkpoint: Checkpoint
    name: str
    packing: Packing
    made: dict[str, np.ndarray] = field(default_factory=dict)

    def planned(self) -> dict[str, Planned]:
        """Return what to write, by kind: weight, scales and, in the affine mode, biases."""
        how, dtype = self.packing, self.checkpoint.stored(self.name).dtype
        *rows, columns = self.checkpoint.stored(self.name).shape
        words, groups = (*rows, columns * how.bits // 32), (*rows, columns // how.group_size)
        out = {"weight": Planned("U32", words, partial(self.part, "weight"))}
        for kind in how.parts[1:]:
            tag = dtype if how.mode == AFFINE else "U8"
            out[kind] = Planned(tag, groups, partial(self.part, kind))
        return out

    def tensor(self) -> QuantizedTensor | MinifloatTensor:
        """Return the packed matrix, or stack of them, as one."""
        how, parts = self.packing, [self.part(kind) for kind in self.packing.parts]
        if how.mode != AFFINE:
            return MinifloatTensor(parts[0], parts[1], how.mode)
        return QuantizedTensor(parts[0], parts[1], parts[2], how.bits, how.group_size, how.mode)

    def part(self, kind: str) -> np.ndarray:
        """Return one of the tensors, once: what was packed beside it waits for its own turn."""
        if kind not in self.made:
            self.made = self._packed()
            self._check()
        return self.made.pop(kind)

    def _packed(self) -> dict[str, np.ndarray]:
        """Pack span by span, and each tile by tile: NumPy works in several threads at once."""
        rows, found = self.checkpoint.stored(self.name).shape[0], []
        for start, stop in self._spans():
            span = unpacked(self.checkpoint.tensor_rows(self.name, start, stop))
            step = max(1, TILE // prod(span.shape[1:]))
            tiles = [span[first : first + step] for first in range(0, len(span), step)]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found += pool.map(partial(pack, self.packing), tiles)
        made = {"weight": joined([one.packed for one in found], rows)}
        for kind in self.packing.parts[1:]:
            made[kind] = joined([getattr(one, kind) for one in found], rows)
        return made

    def _spans(self) -> list[tuple[int, int]]:
        shape = self.checkpoint.stored(self.name).shape
        step = max(1, SPAN // prod(shape[1:]))
        return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]

    def _check(self) -> None:
        """Raise InputError if a scale is no number: its group was not, or does not fit its type."""
        scales, mode = self.made["scales"], self.packing.mode
        spoilt = (
            ~np.isfinite(scales.astype(np.float32)) if mode == AFFINE else scales == SPOILT[mode]
        )
        if mode == AFFINE:
            spoilt |= ~np.isfinite(self.made["biases"].astype(np.float32))
        if spoilt.any():
            what = "cannot be packed: it has numbers that are not finite, or too large for scales"
            raise InputError(self.checkpoint.path, f"tensor {show(self.name)} {what}")


def joined(parts: list[np.ndarray], rows: int) -> np.ndarray:
    """Put parts below each other, and let go of each as it is copied."""
    out = np.empty((rows, *parts[0].shape[1:]), parts[0].dtype)
    first = 0
    for place, part in enumerate(parts):
        out[first : first + len(part)] = part
        first += len(part)
        parts[place] = part[:0]
    return out


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
