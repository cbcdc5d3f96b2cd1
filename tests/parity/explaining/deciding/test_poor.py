"""What poorly explains one of like pieces, the others of which have nothing. By hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import poor
from lockstep.parity.explaining.deciding.poor import withdraw_poor


def case(ratio, bugs, unknown, told, left=1.0, dtype="float32"):
    """Return a case of like pieces: the first is explained and off by so many noises, of which so
    many are `left`.
    """
    pieces = [SimpleNamespace(target=n) for n in range(1 + unknown + told)]
    explanation = SimpleNamespace(atoms=range(bugs), judgement=SimpleNamespace(ratio=left))
    return SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: "norm", shapes=[(1, 100, 8)] * len(pieces)),
        trial=SimpleNamespace(dtype=np.dtype(dtype)),
        judged={0: SimpleNamespace(ratio=ratio)} | dict.fromkeys(
            range(1, len(pieces)), SimpleNamespace(ratio=9.0)
        ),
        explained=[(pieces[0], [explanation])],
        open=pieces[1 : 1 + unknown],
        right=pieces[1 + unknown :],
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
    given.explained[0][1][0].atoms = frozenset({0, 1})
    monkeypatch.setattr(poor, "rewritten", lambda atoms, graph: next(iter(atoms)))
    withdraw_poor(given)
    assert len(given.explained) == kept
