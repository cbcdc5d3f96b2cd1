"""How a module is packed: read off the shapes of its three tensors, not off what is declared.

With the number of inputs known from the architecture, the width of a packed row gives the bits and
the number of scales gives the group size. This is the rule of mlx-lm's loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.quantization import BITS, GROUP_SIZES, Declared
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.sharded import Shards

DISAGREE = "config disagrees with weights: packed weight"
SCALE_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Packing:
    """The bits and the group size of one module."""

    bits: int
    group_size: int

    def agrees(self, declared: Declared | None) -> bool:
        """Tell whether a declaration says the same. One that is silent says nothing."""
        if declared is None:
            return False
        return (declared.bits, declared.group_size) == (self.bits, self.group_size)

    def __str__(self) -> str:
        return f"{self.bits} bits in groups of {self.group_size}"


def is_packed(shards: Shards, module: str) -> bool:
    """Tell whether a module's weight comes with scales."""
    return f"{module}.scales" in shards


def infer_packing(shards: Shards, module: str, shape: tuple[int, ...]) -> Packing:
    """Return how a packed module of a known logical shape (…, rows, columns) is stored.

    Raises InputError unless weight, scales and biases fit together and give a packing that MLX's
    affine mode has.
    """
    *stack, rows, columns = shape
    where = f"module {show(module)}"
    path = shards.path_of(f"{module}.scales")
    weight, scales, biases = _triple(shards, module, path, where)
    if any(e.shape[:-1] != (*stack, rows) for e in (weight, scales, biases)):
        each = f"{' x '.join(map(str, stack))} x " if stack else ""
        what = f"{DISAGREE} {_shapes(weight, scales, biases)} must have {each}{rows} rows"
        raise InputError(path, what, where)
    bits = _exact(weight.shape[-1] * 32, columns)
    group_size = _exact(columns, scales.shape[-1])
    if bits not in BITS or group_size not in GROUP_SIZES or biases.shape != scales.shape:
        what = f"{DISAGREE} {_shapes(weight, scales, biases)} fits no affine packing of "
        raise InputError(path, what + f"{columns} columns", where)
    return Packing(bits, group_size)


def _triple(shards: Shards, module: str, path: Path, where: str) -> tuple[Entry, Entry, Entry]:
    scales = shards.entry(f"{module}.scales")
    if scales.dtype == "U8":
        what = "scales are bytes: the modes mxfp4, mxfp8 and nvfp4 are not supported yet"
        raise InputError(path, what, where)
    for part in ("weight", "biases"):
        if f"{module}.{part}" not in shards:
            raise InputError(path, f"missing tensor {show(f'{module}.{part}')}", where)
    weight, biases = shards.entry(f"{module}.weight"), shards.entry(f"{module}.biases")
    if weight.dtype != "U32":
        raise InputError(path, f"packed weight must be U32, not {weight.dtype}", where)
    if scales.dtype not in SCALE_DTYPES or biases.dtype != scales.dtype:
        what = f"scales and biases must share one of {', '.join(SCALE_DTYPES)}, not "
        raise InputError(path, what + f"{scales.dtype} and {biases.dtype}", where)
    return weight, scales, biases


def _exact(whole: int, part: int) -> int | None:
    """Return whole / part where it is an integer."""
    return whole // part if part and whole % part == 0 else None


def _shapes(*entries: Entry) -> str:
    return ", ".join(show(entry.shape, 30) for entry in entries)
