"""A port's weights file: safetensors or npz, packed modules seen as one matrix each."""

from pathlib import Path

import numpy as np

from lockstep.parity.before.own_tensors import Shape
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

FLOATS = ("float64", "float32", "float16", "bfloat16")


class Unfit(InputError):
    """A tensor that is in the file, and is none that weights may be."""


class PortTensors:
    """Names, shapes and values of a port's weights. One is in memory at a time.

    A module with `weight` and `scales`, packed as MLX does, has one name, that of `weight`.
    """

    def __init__(self, path: str | Path):
        self.file: Dump = open_dump(path)
        self.path, self.packed = self.file.path, set[str]()
        names = self.file.shapes
        for name in names:
            module = name.removesuffix(".weight")
            if module != name and f"{module}.scales" in names:
                self.packed.add(module)
        inside = {f"{m}.{end}" for m in self.packed for end in ("scales", "biases")}
        self.shapes = {name: self.shape(name) for name in names if name not in inside}

    def shape(self, name: str) -> Shape:
        module, shape = name.removesuffix(".weight"), tuple(self.file.shapes[name])
        return (*shape[:-1], -1) if module in self.packed else shape

    def read(self, name: str, wanted: Shape) -> np.ndarray | QuantizedTensor | MinifloatTensor:
        """Return a tensor as it is stored. `wanted` tells how wide a packed one is.

        Raises: Unfit if it holds no numbers that weights may be.
        """
        module = name.removesuffix(".weight")
        if module not in self.packed:
            return self.floats(name)
        codes, scales = self.file.read(name), self.file.read(f"{module}.scales")
        rows = {codes.shape[:-1], scales.shape[:-1]}
        if codes.dtype != np.uint32 or rows != {wanted[:-1]} or not scales.size or not wanted:
            raise self.unfit(name, codes, scales, wanted)
        bits, rest = divmod(32 * codes.shape[-1], wanted[-1])
        group, left = divmod(wanted[-1], scales.shape[-1])
        if rest or left:
            raise self.unfit(name, codes, scales, wanted)
        if f"{module}.biases" in self.file.shapes:
            offsets = self.floats(f"{module}.biases")
            if 1 <= bits <= 8 and scales.shape == offsets.shape:
                return QuantizedTensor(codes, scales, offsets, bits, group, "affine")
        for mode, kind in MINIFLOATS.items():
            if kind == (bits, group) and scales.dtype == np.uint8:
                return MinifloatTensor(codes, scales, mode)
        raise self.unfit(name, codes, scales, wanted)

    def unfit(self, name: str, codes: np.ndarray, scales: np.ndarray, wanted: Shape) -> InputError:
        what = f"packed {show(name, 60)} has codes {codes.shape} and scales {scales.shape}"
        return Unfit(self.path, f"{what}, which gives no matrix of {wanted}")

    def floats(self, name: str) -> np.ndarray:
        array = self.file.read(name)
        if array.dtype.name not in FLOATS:
            kinds = ", ".join(FLOATS)
            what = f"weight {show(name, 60)} holds {array.dtype.name}, {kinds} are read"
            raise Unfit(self.path, what)
        return array
