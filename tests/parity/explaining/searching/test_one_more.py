"""One bug more than a like piece has. By hand: what each set leaves is given."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.one_more import MOST, one_more


def atom(id: str) -> Atom:
    calls = frozenset([1])
    return Atom(Hypothesis(None, id, "", 0, calls), calls)  # pyright: ignore[reportArgumentType]


TAUGHT, RIGHT, *OTHERS = (atom(name) for name in ("taught", "right", "a", "b", "c", "d", "e"))
KNOWN = frozenset([TAUGHT])


def search(left: dict[frozenset[Atom], float]) -> Any:
    """Return a search in which sets leave so much, all others a thousand noises."""

    def fit(atoms: frozenset[Atom]) -> tuple[float, float, float]:
        return (left.get(atoms, 1000.0),) * 3

    return SimpleNamespace(
        look_at=lambda sets, rows: None, fit=fit, settles=lambda atoms: fit(atoms)[0] < 1,
        fewest=lambda atoms: atoms, earned=lambda atoms: True,
    )  # fmt: skip


@pytest.mark.parametrize(("after", "found"), [(500.0, True), (50_000.0, False)])
def test_it_is_looked_for_where_what_is_known_leaves_little(after, found):
    both = KNOWN | {RIGHT}
    here = search({frozenset(): 1e6, KNOWN: after, both: 0.5})
    assert one_more(here, [KNOWN], [*OTHERS, RIGHT, TAUGHT]) == ([both] if found else [])


def test_the_nearest_are_asked():
    """Of more than are asked in full the right one leaves least."""
    assert len(OTHERS) > MOST
    sets = {KNOWN | {one}: 2.0 for one in OTHERS}
    both = KNOWN | {RIGHT}
    here = search({frozenset(): 1e6, KNOWN: 500.0, both: 0.5} | sets)
    assert one_more(here, [KNOWN], [*OTHERS, RIGHT]) == [both]


def test_without_what_is_taught_nothing_is_tried():
    assert one_more(search({}), [], [RIGHT]) == []
