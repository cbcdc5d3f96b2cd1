"""Judge a batch of prompts that the torch modules ran one by one: its rows as one, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lockstep.parity.diffing.one_prompt import Part, is_wrong, sensible
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.padding import Padding, fed_in_steps
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.replaying.oracle import judged_tap
from lockstep.parity.torch_modules.batches import Stacked, stacked
from lockstep.reference.precision import dtype_named


def later_of(left: Dump, right: Dump, count: int, batch: bool) -> list[list[list[int]]]:
    """Return what each prompt is fed in each step after it."""
    if not batch:
        return [right.fed or left.fed]
    steps = fed_in_steps(left, right)
    return [[step[row].tolist() for step in steps] for row in range(count)]


def together(
    parts: Sequence[Part], padding: Padding, left: Dump, right: Dump
) -> tuple[Alignment, Alignment]:
    """Return both sides of a batch, their rows side by side."""
    found = tuple(part.found for part in parts)

    def side(number: int, dump: Dump) -> Alignment:
        rows = tuple(part.sides[number] for part in parts)
        first, told = rows[0], dict.fromkeys(line for row in rows for line in row.told)
        return Stacked(dump, first.names, first.renamed, first.moved, tuple(told),
                       rows=rows, found=found, padding=padding)  # fmt: skip

    return side(0, left), side(1, right)


def judged_together(
    parts: Sequence[Part], port: Alignment, padding: Padding, dtype: str
) -> Iterator[Tap]:
    """Judge the rows of a batch as one, tap by tap: what fills them up is no part of that."""
    for alone in parts[0].taps:
        name = alone.name
        if alone.status == "not judged":
            yield alone
            continue
        every = [[part.replay.truth.read(name), part.replay.centre.read(name),
                  *(way.read(name) for way in part.replay.ways.values())]
                 for part in parts]  # fmt: skip
        truth, centre, *ways = (stacked(row, padding) for row in zip(*every, strict=True))
        value = port.read(name, centre.shape)
        if value.shape != centre.shape or value.dtype.kind in "iubc":
            tap = next((tap for part in parts for tap in part.taps
                        if tap.name == name and is_wrong(tap)), alone)  # fmt: skip
            yield as_in_file(tap, port, centre)
        else:
            yield judged_tap(name, alone.op, value, truth, centre, sensible(ways, centre),
                             dtype_named(dtype), padding)  # fmt: skip


def as_in_file(tap: Tap, port: Alignment, centre: np.ndarray) -> Tap:
    """Name the shape that all rows of a batch have in the file, and should have."""
    whole = port.dump.shapes[port.names[tap.name]]
    if whole == centre.shape or (tap.place or "").startswith("stored as"):
        return tap
    place = f"shape {list(whole)}, but should be {list(centre.shape)}"
    return replace(tap, shape=whole, place=place)
