"""Pieces keep what still explains them, and are open without. By hand."""

from types import SimpleNamespace

from lockstep.parity.explaining.deciding.kept import keep, keep_if


def case(**explained):
    return SimpleNamespace(open=["before"], explained=[*explained.items()])


def test_a_piece_without_an_explanation_is_open():
    some = case(first=[1, 2, 3], second=[3])
    keep_if(some, lambda piece, one: one < 3)
    assert some.explained == [("first", [1, 2])] and some.open == ["before", "second"]


def test_an_explanation_may_be_another_one_then():
    some = case(first=[1], second=[5])
    keep(some, lambda piece, one: [one + 1] if piece == "first" else [])
    assert some.explained == [("first", [2])] and some.open == ["before", "second"]
