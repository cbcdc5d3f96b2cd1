"""What poorly explains one of like pieces, the others of which have nothing. By hand."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import poor
from lockstep.parity.explaining.deciding.poor import withdraw_poor


class Bug(NamedTuple):
    """All that is asked of an atom."""

    hypothesis: int


def case(ratio, bugs, unknown, told, left=1.0, dtype="float32"):
    """Return a case of like pieces: the first is explained and off by so many noises, of which so
    many are `left`.
    """
    pieces = [SimpleNamespace(target=n) for n in range(1 + unknown + told)]
    explanation = SimpleNamespace(
        atoms=frozenset(map(Bug, range(bugs))), judgement=SimpleNamespace(ratio=left)
    )
    return SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: "norm", shapes=[(1, 100, 8)] * len(pieces)),
        trial=SimpleNamespace(dtype=np.dtype(dtype)),
        judged={0: SimpleNamespace(ratio=ratio)} | dict.fromkeys(
            range(1, len(pieces)), SimpleNamespace(ratio=9.0)
        ),
        explained=[(pieces[0], [explanation])],
        open=pieces[1 : 1 + unknown],
        right=pieces[1 + unknown :],
        taught=lambda piece: [],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "bugs", "unknown", "told", "kept"),
    [
        (3.0, 1, 2, 0, False), (3.0, 1, 1, 0, True), (3.0, 1, 2, 1, True), (5.0, 1, 2, 0, True),
        (5.0, 4, 2, 0, False), (5.0, 3, 2, 0, True), (5.0, 4, 1, 0, True),
    ],
)  # fmt: skip
def test_it_keeps_its_name_unless_most_like_ones_have_none(ratio, bugs, unknown, told, kept):
    given = case(ratio, bugs, unknown, told)
    withdraw_poor(given)
    assert len(given.explained) == kept
    assert len(given.open) == unknown + (not kept)


@pytest.mark.parametrize(
    ("left", "bugs", "unknown", "told", "dtype", "kept"),
    [
        (1.4, 2, 1, 0, "float16", False), (1.4, 2, 2, 1, "float16", False),
        (1.4, 2, 1, 1, "float16", True), (1.3, 2, 1, 0, "float16", True),
        (1.4, 1, 1, 0, "float16", True), (1.4, 2, 1, 0, "float32", True),
    ],
)  # fmt: skip
def test_bugs_that_leave_all_but_what_is_allowed(
    left, bugs, unknown, told, dtype, kept, monkeypatch
):
    """The first of them is told, and so are `told` others."""
    monkeypatch.setattr(poor, "stands_out", lambda *_: True)
    given = case(9.0, bugs, unknown, told, left, dtype)
    withdraw_poor(given)
    assert len(given.explained) == kept


@pytest.mark.parametrize(("without", "kept"), [((3.0, 3.9), False), ((3.0, 4.1), True)])
def test_of_several_bugs_one_stands_out(without, kept, monkeypatch):
    """Without it more is left than of a piece that is barely wrong."""
    given = case(9.0, 2, 1, 0, dtype="float16")
    left = [SimpleNamespace(ratio=one) for one in without]
    given.trial.judge = lambda piece, calls: left[calls]
    monkeypatch.setattr(poor, "rewritten", lambda atoms, graph: next(iter(atoms)).hypothesis)
    withdraw_poor(given)
    assert len(given.explained) == kept


@pytest.mark.parametrize(
    ("left", "without", "kept"),
    [(1.0, 10.0, True), (3.0, 50.0, False), (1.0, 3.0, False)],
)
def test_what_takes_nearly_all_of_a_like_piece_is_there(left, without, kept, monkeypatch):
    """By hand: of 100 noises of an open piece the same bugs leave so many, and without either of
    them so many: more than a fiftieth is not nearly all, and who is not needed is not there.
    """
    given = case(9.0, 2, 1, 0, left=1.4, dtype="float16")
    given.taught = lambda piece: [given.explained[0][1][0].atoms]
    given.trial.look = lambda piece, atoms: SimpleNamespace(
        raw=lambda first, last: [100.0, without, left][len(atoms)]
    )
    monkeypatch.setattr(poor, "rewritten", lambda atoms, graph: atoms)
    withdraw_poor(given)
    assert len(given.explained) == kept
