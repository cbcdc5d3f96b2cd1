"""In which tokens two computations part by themselves, and in which they only see others part.

One bit of a key or a value that turned by chance turns bits of all later tokens. A bug that turns
that bit too then has their numbers as well: they say no more for it than the first token did.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from lockstep.parity.graph import Call, Evaluator
from lockstep.parity.graph.by_queries import MAKE
from lockstep.parity.graph.evaluator import Rewritten, is_early


def own_tokens(run: Evaluator, target: int, one: Rewritten, other: Rewritten) -> np.ndarray | None:
    """Return where calls that are not the same give other numbers from the same values.

    Broadcasts with the value `target`; None if nobody can say: a call has no tokens, or those of
    `other` take what is computed behind them.
    Raises: ValueError if a call makes a shape that this model does not have.
    """
    differ = [n for n in sorted(one.keys() | other.keys()) if one.get(n) is not other.get(n)]
    axes = run.graph.token_axes
    if not differ or not all(axes[n] for n in differ) or not all(map(is_early, other.values())):
        return None
    rest = with_calls(run, other)
    calls = (one.get(number) or run.graph.calls[number] for number in differ)
    found = [parted_in(rest, target, call) for call in calls]
    return run.graph.along_tokens(np.any(found, axis=0)[None], target)


def with_calls(run: Evaluator, calls: Rewritten) -> Evaluator:
    """Return a way of computing that takes calls as rewritten for right, and keeps their values."""
    if not calls:
        return run
    behind = set().union(*map(run.behind, calls))
    kept = OrderedDict((n, value) for n, value in run.kept.items() if n not in behind)
    size = sum(value.nbytes for value in kept.values())
    every = tuple(calls.get(call.number, call) for call in run.graph.calls)
    graph = replace(run.graph, calls=every, rewritten={})
    return replace(run, graph=graph, kept=kept, size=size, paths={}, followers={})


def parted_in(run: Evaluator, target: int, call: Call) -> np.ndarray:
    """Return the tokens (T,) in which a call gives other numbers, all else as it is in `run`."""
    number = shown_in(run, target, call.number)
    with np.errstate(all="ignore"):  # a broken port may hold anything
        apart = run.target(number, {call.number: call}) != run.right(number)
    tokens = np.moveaxis(apart, run.graph.token_axes[number][0], 0)
    return tokens.reshape(len(tokens), -1).any(axis=-1)


def shown_in(run: Evaluator, target: int, number: int) -> int:
    """Return where to look for what a call gives: of queries by keys, in what they average.

    Such a matrix may be too large to be there as a whole.
    """
    graph, on_the_way = run.graph, run.before(target)
    while graph.calls[number].op in MAKE:
        takers = on_the_way.intersection(graph.consumers[number])
        if not takers:
            break
        number = min(takers)
    return number
