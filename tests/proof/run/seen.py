"""Whether a port's own numbers show a bug at all: asked of the port, never of `explain`.

In float32 a bug is seen where it moves a tap by more than `selfcheck.MARGIN` floors: a floor is how
far right ports of eager and SDPA attention are apart there, and at least a quarter of a step. In
half precision it is below rounding if it moves no tap of the same port in float32 by half a step of
that precision, which is what so many floors are there; so another bug's noise does not excuse it.
What exists in half precision alone is measured there, in floors. Nor is a bug seen of which the
port's own numbers show not a bit, as where it rounds what is in half precision already.
"""

import numpy as np

from tests.proof.combos import Dump, distances
from tests.proof.registry import named
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump
from tests.proof.selfcheck import MARGIN, STEP


def is_seen(case: Case, bug: str, places: Places, *more: str) -> dict[str, bool]:
    """Say at each granularity whether a bug shows, among the others of its case.

    Or it and some `more` together: two that undo each other show nothing, though either alone does.
    """
    here = {bug, *more}
    others = [name for name in case.bugs if name not in here]
    half_alone = case.kind != "own" and any("float32" not in named(one).dtypes for one in here)
    dtype = case.dtype if half_alone else "float32"
    with_it = dump(case, places, dtype=dtype)
    without = dump(case, places, others, dtype=dtype)
    rounding = {}
    if dtype == case.dtype and case.kind != "own":
        other = "sdpa" if case.attention == "eager" else "eager"
        rounding = distances(dump(case, places, others, dtype=dtype, attention=other), without)
    least = STEP[case.dtype] / 4
    marked = {one: True for one in case.granularities}
    if dtype != case.dtype:
        marked = differ(case, dump(case, places), dump(case, places, others))
    return {
        one: marked[one]
        and any(
            move > MARGIN * max(rounding.get(tap, 0.0), least)
            for tap, move in moves(with_it, without, one).items()
        )
        for one in case.granularities
    }


def first_seen(case: Case, granularity: str, places: Places, bug: str) -> str | None:
    """Return the first tap, in float32, that a bug changes beside the others of its case.

    What a port has only with the bug, or only without it, is no tap of the model.
    """
    others = [name for name in case.bugs if name != bug]
    found, right = (
        at(dump(case, places, some, dtype="float32"), granularity) for some in (case.bugs, others)
    )
    both = (tap for tap in found if tap in right)
    return next((tap for tap in both if not same({tap: found[tap]}, {tap: right[tap]})), None)


def differ(case: Case, found: Dump, right: Dump) -> dict[str, bool]:
    """Say at each granularity whether any bit of two dumps differs."""
    return {one: not same(at(found, one), at(right, one)) for one in case.granularities}


def same(found: Dump, right: Dump) -> bool:
    return found.keys() == right.keys() and all(
        np.array_equal(value, right[tap], equal_nan=True) for tap, value in found.items()
    )


def moves(found: Dump, right: Dump, granularity: str) -> dict[str, float]:
    return distances(at(found, granularity), at(right, granularity))
