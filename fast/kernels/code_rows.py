"""How the codes of a cache lie: a row for each token of each head, in the form of a format."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lockstep.fast.caches import turbo_cpu
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.formats import affine, int8, turbo
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.product import interleaved
from lockstep.fast.shapes import Array, Queries
from lockstep.reference.stores.codecs import AffineCodes, TurboCodes, affine_group, whole_group


@dataclass(frozen=True)
class Rows:
    """A format's numbers and arrays, how many rows a head has, and how its columns interleave."""

    of: Constants
    matrix: tuple[Array, ...]
    room: int
    parts: int


def together(queries: Queries, keys: HeldCodes, values: HeldCodes, *, unit: int) -> bool:
    """Whether these belong to each other, and heads are of whole `unit`s."""
    batch, heads, _, width = queries.shape
    alike = keys.shape == values.shape and keys.shape[::3] == (batch, width)
    return alike and width % unit == 0 and heads % keys.shape[1] == 0


def stored(held: HeldCodes) -> Rows | None:
    """Return codes as kernels read them; None where sixteen of a head are not of one scale."""
    codec, width = held.codec, held.like.shape[-1]
    room, codes = flat(held.codes)
    if isinstance(codec, TurboCodes):
        levels = codec.bits - int(codec.unbiased)
        table = codec.tables(width)
        terms = np.append(turbo_cpu.terms(table, levels), turbo_cpu.factor(table)).astype(
            np.float32
        )
        matrix = (codes[0], codes[1].ravel(), terms, codes[-1].ravel())
        return Rows(turbo.layout(levels, unbiased=codec.unbiased), matrix, room, 1)
    if isinstance(codec, AffineCodes):
        of = affine.layout(codec.bits, affine_group(width))
        return Rows(of, (codes[0].view(np.uint8), *codes[1:]), room, of.numbers["parts"])
    group = whole_group(width)
    return None if group % WIDTH else Rows(int8.layout(group), (*codes,), room, 1)


def flat(codes: list[Array]) -> tuple[int, list[Array]]:
    """Return parts (B, G, S, W) as rows (B * G * room, W), and the room between heads.

    Nothing is copied where all lie in buffers of one room. Rows in that room are never read.
    """
    rooms = {room_of(part) for part in codes}
    if len(rooms) > 1 or None in rooms:
        codes = [np.ascontiguousarray(part) for part in codes]
        rooms = {codes[0].shape[2]}
    room = int(rooms.pop() or 0)
    return room, [rows_of(part, room) for part in codes]


def room_of(part: Array) -> int | None:
    """Return how many rows lie between heads; None if they do not lie evenly."""
    batch, groups, held, width = part.shape
    row = width * part.itemsize
    apart = part.strides[1] if groups > 1 else part.strides[0]
    room = held if batch * groups == 1 else apart // row
    even = part.strides[2:] == (row, part.itemsize) and room * row == apart
    even = even or (batch * groups == 1 and part.strides[2:] == (row, part.itemsize))
    within = batch == 1 or groups == 1 or part.strides[0] == groups * apart
    return room if even and within else None


def rows_of(part: Array, room: int) -> Array:
    batch, groups, held, width = part.shape
    count = (batch * groups - 1) * room + held
    row = width * part.itemsize
    return as_strided(part, (count, width), (row, part.itemsize), writeable=False)


def asked(queries: Array, keys: HeldCodes, parts: int) -> Array:
    """Return queries (B, H, L, D) as a format's rows are compared with: (B, H, L, W).

    TurboQuant's are turned; what is compared with signs stands behind. Others have their columns
    sorted as a format's vectors have them.
    """
    if isinstance(keys.codec, TurboCodes):
        table = keys.codec.tables(queries.shape[-1])
        queries = turbo_cpu.turned(queries, table)
        if keys.codec.unbiased:
            late = turbo_cpu.projected(queries, table)
            queries = np.concatenate([queries, late], axis=-1)
    rows = interleaved(queries.reshape(-1, queries.shape[-1]), parts)
    return np.ascontiguousarray(rows).reshape(queries.shape)


def answered(out: Array, values: HeldCodes, parts: int) -> Array:
    """Return averages of a format's rows (B, H, L, D) as averages of values."""
    if isinstance(values.codec, TurboCodes):
        return turbo_cpu.turned_back(out, values.codec.tables(out.shape[-1]))
    runs = out.reshape(*out.shape[:3], out.shape[3] // (WIDTH * parts), parts, WIDTH)
    return runs.swapaxes(4, 5).reshape(out.shape)


def recent(held: HeldCodes) -> Any:
    """Return the tokens that are no codes, (B, G, R, D), as they lie after any step: gapless.

    Those of a first step may lie otherwise: for them alone no kernel is compiled.
    """
    if held.recent is None:
        batch, groups, _, width = held.shape
        return np.zeros((batch, groups, 0, width), np.float32)
    return np.ascontiguousarray(held.recent)
