"""How a module is packed: read off the shapes of its tensors, not off what is declared.

With the number of inputs known from the architecture, the width of a packed row gives the bits and
the number of scales gives the group size. Scales that are bytes say that the codes are tiny floats:
which ones follows from the bits and the group size. This is the rule of mlx-lm's loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS
from lockstep.reference.checkpoint.quantization import AFFINE, BITS, GROUP_SIZES, Declared
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.sharded import Shards

DISAGREE = "config disagrees with weights: packed weight"
SCALE_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Packing:
    """The bits, the group size and the mode of one module."""

    bits: int
    group_size: int
    mode: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The tensors that the module's weight is made of."""
        return ("weight", "scales", "biases") if self.mode == AFFINE else ("weight", "scales")

    def agrees(self, declared: Declared | None) -> bool:
        """Tell whether a declaration says the same. One that is silent says nothing."""
        if declared is None:
            return False
        said = declared.bits, declared.group_size, declared.mode
        return (self.bits, self.group_size, self.mode) == said

    def __str__(self) -> str:
        mode = "" if self.mode == AFFINE else f" by {self.mode}"
        return f"{self.bits} bits in groups of {self.group_size}{mode}"


def is_packed(shards: Shards, module: str) -> bool:
    """Tell whether a module's weight comes with scales."""
    return f"{module}.scales" in shards


def infer_packing(shards: Shards, module: str, shape: tuple[int, ...]) -> Packing:
    """Return how a packed module of a known logical shape (…, rows, columns) is stored.

    Raises InputError unless its tensors fit together and give a packing that MLX has.
    """
    *stack, rows, columns = shape
    where = f"module {show(module)}"
    path = shards.path_of(f"{module}.scales")
    parts = _parts(shards, module, path, where)
    weight, scales = parts[:2]
    if any(e.shape[:-1] != (*stack, rows) for e in parts):
        each = f"{' x '.join(map(str, stack))} x " if stack else ""
        what = f"{DISAGREE} {_shapes(*parts)} must have {each}{rows} rows"
        raise InputError(path, what, where)
    bits = _exact(weight.shape[-1] * 32, columns)
    group_size = _exact(columns, scales.shape[-1])
    mode = _minifloat(bits, group_size) if scales.dtype == "U8" else AFFINE
    odd = bits not in BITS or group_size not in GROUP_SIZES or parts[-1].shape != scales.shape
    if bits is None or group_size is None or mode is None or (mode == AFFINE and odd):
        kind = "packing with bytes for scales" if scales.dtype == "U8" else "affine packing"
        what = f"{DISAGREE} {_shapes(*parts)} fits no {kind} of {columns} columns"
        raise InputError(path, what, where)
    return Packing(bits, group_size, mode)


def _minifloat(bits: int | None, group_size: int | None) -> str | None:
    """Return the mode of tiny floats that has these sizes: no two have the same."""
    found = (mode for mode, sizes in MINIFLOATS.items() if sizes == (bits, group_size))
    return next(found, None)


def _parts(shards: Shards, module: str, path: Path, where: str) -> tuple[Entry, ...]:
    """Return the entries of weight and scales, and of biases in the affine mode."""
    scales = shards.entry(f"{module}.scales")
    bytes_alone = scales.dtype == "U8"
    for part in ("weight",) if bytes_alone else ("weight", "biases"):
        if f"{module}.{part}" not in shards:
            raise InputError(path, f"missing tensor {show(f'{module}.{part}')}", where)
    weight = shards.entry(f"{module}.weight")
    if weight.dtype != "U32":
        raise InputError(path, f"packed weight must be U32, not {weight.dtype}", where)
    if bytes_alone:
        if f"{module}.biases" in shards:
            raise InputError(path, "scales are bytes, which go without biases", where)
        return weight, scales
    biases = shards.entry(f"{module}.biases")
    if scales.dtype not in SCALE_DTYPES or biases.dtype != scales.dtype:
        what = f"scales and biases must share one of {', '.join(SCALE_DTYPES)}, not "
        raise InputError(path, what + f"{scales.dtype} and {biases.dtype}", where)
    return weight, scales, biases


def _exact(whole: int, part: int) -> int | None:
    """Return whole / part where it is an integer."""
    return whole // part if part and whole % part == 0 else None


def _shapes(*entries: Entry) -> str:
    return ", ".join(show(entry.shape, 30) for entry in entries)
