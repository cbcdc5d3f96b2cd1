"""One pass over the graph, which computes right values, and what rewrites make of them, together.

Each weight is read once for all, and a value is dropped as soon as nothing later takes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from lockstep.parity.graph.by_queries import whole
from lockstep.parity.graph.call import Call
from lockstep.parity.graph.evaluator import Evaluator, Rewritten, is_early
from lockstep.parity.graph.graph import values_of

Row = list[Any]  # a value as it should be, then as each variant makes it; large ones put off


def side_by_side(
    run: Evaluator, numbers: Collection[int], variants: Sequence[Rewritten] = ()
) -> Iterator[tuple[int, Row]]:
    """Yield some values of `run` in order, each right, and as every variant makes it.

    A variant that takes a value before it is computed is computed by itself.
    """
    alone = [any(not is_early(call) for call in calls.values()) for calls in variants]
    together = [{} if one else calls for one, calls in zip(alone, variants, strict=True)]
    for number, row in in_one_pass(run, numbers, together):
        for place, calls in enumerate(variants):
            if alone[place]:
                row[place + 1] = run.target(number, calls)
        yield number, row


def in_one_pass(
    run: Evaluator, numbers: Collection[int], variants: Sequence[Rewritten]
) -> Iterator[tuple[int, Row]]:
    taken = sources_of(run, numbers, variants)
    last = {source: number for number in sorted(taken) for source in taken[number]}
    rows: dict[int, Row] = {}
    for number in sorted(taken):
        here = {source: rows[source] for source in taken[number] if source in rows}
        rows[number] = row_of(run, number, variants, here)
        if number in numbers:
            yield number, [*map(whole, rows[number])]
        for done in (number, *here):
            if last.get(done, number) == number:
                del rows[done]


def row_of(
    run: Evaluator, number: int, variants: Sequence[Rewritten], taken: Mapping[int, Row]
) -> Row:
    """Compute a value: right, and anew for each variant that changes its call or what it takes."""
    plain = run.graph.calls[number]

    def value(call: Call, place: int) -> Any:
        return run.compute(call, {source: row[place] for source, row in taken.items()})

    row = [value(plain, 0)]
    for place, calls in enumerate(variants, 1):
        moved = number in calls or any(some[place] is not some[0] for some in taken.values())
        row.append(value(calls.get(number, plain), place) if moved else row[0])
    return row


def sources_of(
    run: Evaluator, numbers: Collection[int], variants: Sequence[Rewritten]
) -> dict[int, frozenset[int]]:
    """Return every call that must be computed, and what it takes, rewritten or not."""
    found: dict[int, frozenset[int]] = {}
    waiting = [*numbers]
    while waiting:
        number = waiting.pop()
        if number not in found:
            changed = (values_of(calls[number]) for calls in variants if number in calls)
            found[number] = run.graph.sources(number).union(*changed)
            waiting += [one for one in found[number] if one not in run.dumped]
    return found
