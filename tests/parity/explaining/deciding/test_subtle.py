"""A bug that is known from one piece is asked of the bits of others, too, where these have bugs."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.deciding import subtle


@pytest.mark.parametrize(
    ("known", "moved", "faint"),
    [
        ((), [2.0], True),
        ((), [2.0, 0.0], True),
        ((), [0.0], False),  # it changes nothing there
        ((), [2.0, 5.0], False),  # it would show there
        (("bug",), [2.0], False),
        (("other",), [2.0], True),
    ],
)
def test_a_known_bug_that_hardly_shows_beside_others_is_asked_for(known, moved, faint, monkeypatch):
    """By hand: noises that the variants of a bug move a piece by."""
    variants: Any = [SimpleNamespace(id="bug", moved=one) for one in moved]
    monkeypatch.setattr(subtle, "atoms", lambda one, piece: [one])
    monkeypatch.setattr(subtle, "rewritten", lambda some, graph: {0: some[0]})

    def look(piece: Any, calls: Any) -> Any:
        return SimpleNamespace(usual_effect=lambda: calls[0].moved)

    named = {7: [SimpleNamespace(hypothesis=SimpleNamespace(id=one)) for one in known]}
    ballot: Any = SimpleNamespace(named=named, trial=SimpleNamespace(look=look, graph=None))
    piece: Any = SimpleNamespace(target=7)
    assert subtle.is_faint(variants, piece, ballot) == faint
