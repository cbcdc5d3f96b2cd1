"""What poorly explains one of like pieces, the others of which have nothing. By hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.deciding.poor import withdraw_poor


def case(ratio, bugs, unknown, told):
    """Return a case of like pieces: the first is explained and off by so many noises."""
    pieces = [SimpleNamespace(target=n) for n in range(1 + unknown + told)]
    return SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: "norm"),
        judged={0: SimpleNamespace(ratio=ratio)} | dict.fromkeys(
            range(1, len(pieces)), SimpleNamespace(ratio=9.0)
        ),
        explained=[(pieces[0], [SimpleNamespace(atoms=range(bugs))])],
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
