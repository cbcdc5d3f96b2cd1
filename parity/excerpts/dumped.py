"""Dumps of some tokens: what they say, and two sides brought to the tokens that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.excerpts.excerpt import Excerpt, Shape, runs
from lockstep.parity.excerpts.orders import Cut, by_steps, settled
from lockstep.reference.checkpoint.errors import InputError, show

Prompts = Sequence[Sequence[int]]
UNKNOWN = "says positions, but not the tokens of its prompt: put them into its metadata"
APART = "no position of the prompt is also in {other}{row}"


def excerpt_in(dump: Dump, prompts: Prompts | None) -> Excerpt | None:
    """Return which tokens of the prompts a dump has, None if it has all.

    Raises: InputError if what it says of them is nonsense, or the prompts are not known.
    """
    if "positions" not in dump.about:
        return None
    if not prompts or not all(prompts):
        raise InputError(dump.path, UNKNOWN, "__metadata__")
    rows = [dump.ids("positions") or []] if dump.batch is None else dump.rows("positions") or []
    fits = len(rows) == len(prompts) and all(map(are_in, rows, prompts))
    if not fits:
        said = show(dump.about["positions"], 40)
        what = f"positions {said} must rise, and be in the prompt"
        raise InputError(dump.path, what + " of each row" * (len(prompts) > 1), "__metadata__")
    return Excerpt(tuple(map(tuple, rows)), tuple(map(len, prompts)))


def are_in(row: Sequence[int], prompt: Sequence[int]) -> bool:
    rising = all(a < b for a, b in pairwise(row))
    return bool(row) and rising and row[-1] < len(prompt)


def brought_together(
    left: Dump, right: Dump, prompts: Prompts | None
) -> tuple[Dump, Dump, Excerpt | None, list[str], dict[str, Shape]]:
    """Cut both sides to the tokens that both have; what is compared then, None if it is all.

    Last come lines on axes that had to be told apart, and taps whose axes could not.
    Raises: InputError if there are none, or a side says nonsense.
    """
    found = [excerpt_in(dump, prompts) for dump in (left, right)]
    if prompts is None or not any(found):
        return left, right, None, [], {}
    lengths = tuple(map(len, prompts))
    every = Excerpt(tuple(tuple(range(length)) for length in lengths), lengths)
    ours, theirs = (one or every for one in found)
    rows = tuple(tuple(sorted({*a} & {*b})) for a, b in zip(ours.rows, theirs.rows, strict=True))
    for number, row in enumerate(rows):
        if not row:
            where = f" in row {number}" if len(rows) > 1 else ""
            raise InputError(right.path, APART.format(other=left.path, row=where))
    shared = Excerpt(rows, lengths)
    if shared.is_whole:
        return left, right, None, [], {}
    sides = (
        Cut(cut_dump(dump, held, shared), dump.shapes, held, side)
        for dump, held, side in ((left, ours, "left"), (right, theirs, "right"))
    )
    left, right, told, gone = settled(*sides)
    return left, right, shared, told, gone


def cut_dump(dump: Dump, held: Excerpt, wanted: Excerpt) -> Dump:
    """Return a dump of fewer tokens than it `held`, of which no others are read."""
    if held.rows == wanted.rows:
        return dump
    inside = Excerpt(
        tuple(
            tuple(map(row.index, some)) for row, some in zip(held.rows, wanted.rows, strict=True)
        ),
        held.counts,
    )
    left = dump.padding == "left" and dump.batch is not None
    axes = {name: inside.axis(name, shape) for name, shape in dump.shapes.items()}
    axes |= {name: axis for name, axis in by_steps(dump.shapes).items() if axes[name] is not None}
    shapes = {name: cut_shape(shape, axes[name], inside) for name, shape in dump.shapes.items()}
    read = partial(read_cut, dump, inside, axes, left)
    return replace(dump, shapes=shapes, read=read, parted=None)


def cut_shape(shape: Shape, axis: int | None, inside: Excerpt) -> Shape:
    if axis is None:
        return shape
    return (*shape[:axis], max(inside.counts), *shape[axis + 1 :])


def read_cut(
    dump: Dump, inside: Excerpt, axes: dict[str, int | None], left: bool, name: str
) -> np.ndarray:
    """Read the rows of some tokens, filled up on the side that the dump is filled up on."""
    axis = axes[name]
    if axis is None:
        return dump.read(name)
    tensor = dump.parts(name)
    if axis == 0 or len(inside.rows) == 1:
        return rows_of(tensor, inside.rows[0], axis)
    whole = np.zeros(cut_shape(tensor.shape, axis, inside), tensor.dtype)
    for row, places in enumerate(inside.rows):
        by = inside.longest - inside.lengths[row] if left else 0
        mine = rows_of(tensor, [place + by for place in places], axis, row)
        to = slice(whole.shape[axis] - len(places), None) if left else slice(len(places))
        np.moveaxis(whole[row], axis - 1, 0)[to] = np.moveaxis(mine, axis - 1, 0)
    return whole


def rows_of(tensor: Parts, places: Sequence[int], axis: int, row: int | None = None) -> np.ndarray:
    """Read some places along an axis, of all rows of a batch or of one, a run of them at a time."""
    outer, inner = prod(tensor.shape[:axis]), prod(tensor.shape[axis + 1 :])
    count = outer if row is None else outer // tensor.shape[0]
    first, length = count * (row or 0), tensor.shape[axis]
    found = np.empty((count, len(places), inner), tensor.dtype)
    for number in range(count):
        begin = (first + number) * length
        for start, stop in runs(places):
            span = (begin + places[start]) * inner, (begin + places[stop - 1] + 1) * inner
            found[number, start:stop] = tensor.read(*span, None).reshape(stop - start, inner)
    lead = tensor.shape[:axis] if row is None else tensor.shape[1:axis]
    return found.reshape(*lead, len(places), *tensor.shape[axis + 1 :])
