"""A processor's matrix unit (Intel's AMX): eight tiles, each of up to 16 rows of 64 bytes.

One instruction adds the products of two tiles to a third: of a row of the one, in cells of 32 bits,
with all sixteen columns of the other, whose cells of one column lie below each other. A thread says
what shapes its tiles have before it uses them, and leaves them when it is done.
"""

import ctypes
import platform
import struct
import sys
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import I8, instruction, vector
from lockstep.fast.kernels.sharing import POINTER
from lockstep.fast.kernels.tile import I64, has_feature

DEEP = 16  # rows of a tile at most: tokens in the one, cells of a column in the other
WIDE = 64  # bytes of a row
SHAPES = "<BB14x8H16x8B8x"  # as the unit reads them: two numbers, then all tiles' bytes, and rows
ARCH_PRCTL, ASK_FOR_STATE, TILE_DATA = 158, 0x1023, 18  # Linux on x86-64


@cache
def possible(name: str) -> bool:
    """Whether there is a unit for what LLVM calls so (`amx-int8`, `amx-bf16`), and we may use it.

    Linux gives a process the room for tiles when it asks. Other systems were not tried.
    """
    return has_feature("amx-tile") and has_feature(name) and granted()


@cache
def granted() -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, ASK_FOR_STATE, TILE_DATA) == 0


def ask(builder: Any, name: str, *given: Any) -> None:
    """Call one of LLVM's instructions of tiles: numbers of tiles, places, distances of rows."""
    values = [ir.Constant(I8, one) if isinstance(one, int) else one for one in given]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def load(builder: Any, tile: int, place: Any, apart: int) -> None:
    """Read a tile whose rows lie so many bytes apart."""
    ask(builder, "tileloadd64", tile, builder.bitcast(place, POINTER), ir.Constant(I64, apart))


def keep(builder: Any, tile: int, place: Any, apart: int) -> None:
    """Write a tile, with its rows so many bytes apart."""
    ask(builder, "tilestored64", tile, builder.bitcast(place, POINTER), ir.Constant(I64, apart))


def shape(builder: Any, shapes: list[tuple[int, int]]) -> None:
    """Take the unit's tiles: of each its rows, and the bytes of a row."""
    rows, octets = zip(*shapes, strict=True)
    packed = struct.pack(SHAPES, 1, 0, *octets, *rows)
    kind = vector(I8, len(packed))
    place = cgutils.alloca_once_value(builder, ir.Constant(kind, list(packed)))
    ask(builder, "ldtilecfg", builder.bitcast(place, POINTER))


@instruction
def leave_tiles(_: Any) -> Any:
    """Leave the unit, so that the system need not keep its tiles for this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ask(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate
