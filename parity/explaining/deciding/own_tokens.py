"""In which tokens two computations part by themselves, and in which they only see others part.

One bit of a key or a value that turned by chance turns bits of all later tokens. A bug that turns
that bit too then has their numbers as well: they say no more for it than the first token did.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lockstep.parity.graph import Call, Evaluator

Rewritten = Mapping[int, Call]


def own_tokens(run: Evaluator, target: int, one: Rewritten, other: Rewritten) -> np.ndarray | None:
    """Return where calls that are not the same give other numbers from the same values.

    Broadcasts with the value `target`; None if a call has no tokens, so that nobody can say.
    Raises: ValueError if a call makes a shape that this model does not have.
    """
    found: np.ndarray | None = None
    for number in sorted(one.keys() | other.keys()):
        if one.get(number) is other.get(number):
            continue
        if not run.graph.token_axes[number]:
            return None
        parted = parted_in(run, number, one, other)
        found = parted if found is None else found | parted
    return None if found is None else along_tokens(found, run, target)


def parted_in(run: Evaluator, number: int, one: Rewritten, other: Rewritten) -> np.ndarray:
    """Return the tokens (T,) in which a call gives other numbers, all before it as right."""
    rest = {key: call for key, call in other.items() if key != number}
    own = {number: one[number]} if number in one else {}
    with np.errstate(all="ignore"):  # a broken port may hold anything
        apart = run.target(number, rest | own) != run.target(number, other)
    tokens = np.moveaxis(apart, run.graph.token_axes[number][0], 0)
    return tokens.reshape(len(tokens), -1).any(axis=-1)


def along_tokens(found: np.ndarray, run: Evaluator, target: int) -> np.ndarray:
    shape = [1] * len(run.graph.shapes[target])
    shape[run.graph.token_axes[target][0]] = len(found)
    return found.reshape(shape)
