"""Which of GGUF's types each tensor of a folder takes, and whether that is the same model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lockstep.reference.checkpoint.block_tensor import BLOCKS
from lockstep.reference.checkpoint.checkpoint import Checkpoint

FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number
WRITTEN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # by the gguf package
ALWAYS_F32 = ("mlp.gate.weight", "wpe.weight")  # routers and positions, as llama.cpp's converter


def types_of(checkpoint: Checkpoint, form: str | None) -> dict[str, str]:
    """Return name -> type. Matrices take `form`; without one, the type nearest to what is stored.

    Vectors are float32, and so is a matrix whose rows are no whole number of blocks.
    """
    return {name: type_of(checkpoint, name, form) for name in checkpoint.names}


def type_of(checkpoint: Checkpoint, name: str, form: str | None) -> str:
    stored = checkpoint.stored(name)
    if len(stored.shape) == 1 or name.endswith(ALWAYS_F32):
        return "F32"
    found = form or (nearest(stored.bits) if stored.packed else stored.dtype)
    return found if stored.shape[-1] % BLOCKS.get(found, (1,))[0] == 0 else "F32"


def nearest(bits: int | None) -> str:
    """Return llama.cpp's simplest type with as many bits a code as MLX's packing, or the next.

    Codes of 2 and 3 bits take 4 there, those of 6 bits 8.
    """
    codes = 4 if bits is None else bits
    return "Q4_0" if codes <= 4 else "Q5_0" if codes == 5 else "Q8_0"


def is_exact(checkpoint: Checkpoint, types: dict[str, str]) -> bool:
    """Whether every number is the stored one: nothing is unpacked, nothing is rounded."""
    return all(held(checkpoint.stored(name).dtype, types[name]) and not
               checkpoint.stored(name).packed for name in checkpoint.names)  # fmt: skip


def held(stored: str, kind: str) -> bool:
    """Whether a type holds every number of a stored one."""
    return kind in ("F32", stored)


def said(types: Iterable[str], *, exact: bool) -> str:
    """Return what a copy is called: by the types of its matrices."""
    matrices = sorted({kind for kind in types if kind != "F32"}) or ["F32"]
    same = "" if exact else ": not the same weights"
    return f"{' and '.join(matrices)} copy{same}"


def nbytes(shape: tuple[int, ...], kind: str) -> int:
    """Return the bytes of a tensor in a type."""
    columns = int(np.prod(shape))
    if kind in FLOATS:
        return columns * FLOATS[kind]
    weights, size = BLOCKS[kind]
    return columns // weights * size
