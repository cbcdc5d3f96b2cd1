"""A bug is part of an explanation only if the port is nearer with it. By hand."""

from dataclasses import replace

import numpy as np

from lockstep.parity.explaining.searching.earned import earned, parts
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.look import Look

ONE, TWO, THREE = (
    Atom(Hypothesis(None, id, "", 0, frozenset([1])), frozenset([1]))  # pyright: ignore[reportArgumentType]
    for id in ("one", "two", "three")
)


def look(*errors: float, careful: bool = True) -> Look:
    """Return what a hypothesis leaves of four tokens, in noises."""
    port = np.array(errors)[:, None]
    nothing = np.zeros((4, 1))
    found = Look.of(port, nothing, nothing, 1.0, careful=careful)
    one = np.ones(4)
    return replace(found, wrong=one, right=one)


def said(whole: frozenset[Atom], looks: dict[frozenset[Atom], Look]) -> bool:
    return earned(whole, lambda atoms: looks.get(atoms))


def test_of_a_set_each_bug_and_every_two_are_left_out():
    assert set(parts(frozenset([ONE, TWO, THREE]))) == {
        frozenset([ONE, TWO]), frozenset([ONE, THREE]), frozenset([TWO, THREE]),
        frozenset([ONE]), frozenset([TWO]), frozenset([THREE]),
    }  # fmt: skip
    assert set(parts(frozenset([ONE]))) == {frozenset()}


def test_a_bug_that_leaves_what_was_left_without_it_is_not_earned():
    """A set that just does not pass may pass with it, if it makes the noise larger."""
    both, first = frozenset([ONE, TWO]), frozenset([ONE])
    known = {frozenset(): look(9, 9, 9, 9), frozenset([TWO]): look(9, 9, 9, 9)}
    assert not said(both, known | {both: look(2, 2, 2, 2), first: look(2, 2, 2, 2)})
    assert not said(both, known | {both: look(2, 2, 2, 2.1), first: look(2, 2, 2, 2)})
    assert said(both, known | {both: look(1, 1, 1, 1), first: look(2, 2, 2, 2)})


def test_two_bugs_that_undo_each_other_are_not_earned():
    both, alone = frozenset([ONE, TWO]), look(5, 5, 5, 5)
    known = {frozenset([ONE]): alone, frozenset([TWO]): alone, both: look(2, 2, 2, 2)}
    assert not said(both, known | {frozenset(): look(2, 2, 2, 2)})
    assert said(both, known | {frozenset(): look(6, 6, 6, 6)})


def test_a_bug_that_is_given_need_not_bring_the_port_nearer_but_the_others_beside_it():
    both = frozenset([ONE, TWO])
    known = {frozenset(): look(9, 9, 9, 9), frozenset([TWO]): look(9, 9, 9, 9)}
    known |= {frozenset([ONE]): look(2, 2, 2, 2), both: look(2, 2, 2, 2.1)}
    assert earned(both, known.get, frozenset([TWO]))
    assert not earned(both, known.get, frozenset([ONE]))
    idle = known | {frozenset([TWO]): look(2, 2, 2, 2)}
    assert not earned(both, idle.get, frozenset([TWO]))


def test_a_bug_of_one_token_is_earned_where_that_token_is_nearer():
    one = frozenset([ONE])
    known = {frozenset(): look(9, 2, 90, 90)}
    assert not said(one, known | {one: look(1, 2, 90, 90)})  # not the farthest
    assert said(one, {frozenset(): look(9, 9, 9, 100), one: look(20, 50, 80, 20)})


def test_a_bug_that_is_farther_over_all_is_not_earned_by_the_farthest_token():
    one = frozenset([ONE])
    assert not said(one, {frozenset(): look(9, 9, 9, 20), one: look(30, 30, 30, 5)})


def test_behind_a_router_a_single_token_says_nothing():
    one = frozenset([ONE])
    before, after = look(9, 9, 9, 100, careful=False), look(20, 50, 80, 20, careful=False)
    assert not said(one, {frozenset(): before, one: after})


def test_a_set_that_cannot_be_is_not_earned_and_a_part_that_cannot_be_says_nothing():
    one = frozenset([ONE])
    assert not said(one, {frozenset(): look(9, 9, 9, 9)})
    assert said(one, {one: look(1, 1, 1, 1)})
