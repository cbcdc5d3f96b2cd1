"""What rounds coarsely is there if what is left without it goes its way."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.searching import seen
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.in_line import but_loudest, in_line
from lockstep.parity.explaining.searching.search import Search
from tests.parity.explaining.searching.test_merged import atom, search_of


@pytest.mark.parametrize("coarse", [True, False])
def test_what_rounds_coarsely_is_there_if_what_is_left_goes_its_way(coarse: bool):
    """By law: the error that a rounding leaves is in line with it, and another rounding's is not.

    The port's own rounding turns ties of the coarse grid, so that nothing comes nearer by it.
    """
    loud, low = ("attn-scale-twice", ""), ("softmax-low-precision", "in bfloat16")
    search, here = search_of("model.layers.0.self_attn.o_proj", [loud, low] if coarse else [loud])
    both = frozenset([here[loud], here[low]])
    calls = [rewritten(some, search.trial.graph) for some in ([here[loud]], both)]
    assert calls[0] and calls[1]
    found, numbers = in_line(search.trial, search.piece, calls[0], calls[1])
    assert numbers == search.trial.port(search.piece.target)[:, 1:].size
    assert found == pytest.approx(1.0, abs=0.05) if coarse else abs(found) < 0.2
    assert search.shown(here[low], both) is coarse
    search.proven = {here[low].hypothesis}
    assert search.shown(here[low], both)


@pytest.mark.parametrize("coarse", [True, False])
def test_in_half_precision_it_is_there_for_no_other_reason(coarse: bool):
    """By law: its noise alone may bring one token nearer."""
    loud, low = ("attn-scale-twice", ""), ("softmax-low-precision", "in bfloat16")
    where, bugs = "model.layers.0.self_attn.o_proj", [loud, low] if coarse else [loud]
    search, here = search_of(where, bugs, dtype="float16")
    both = frozenset([here[loud], here[low]])
    assert search.beside(here[low], both) is coarse
    assert search.beside(here[low], frozenset([here[low]]))
    search, here = search_of(where, bugs)
    assert search.beside(here[low], frozenset([here[loud], here[low]]))


def test_what_makes_what_is_no_number_is_there_for_that():
    """By hand: of one token more the port has no numbers, just as the bug makes it."""
    one, other = atom("one", 1), atom("other", 2)
    search = Search(SimpleNamespace(dtype=np.dtype(np.float16)), SimpleNamespace(), [])  # pyright: ignore[reportArgumentType]
    both, rest = frozenset([one, other]), frozenset([other])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "routed", False)
        patch.setattr(Search, "shown", lambda *given: False)
        for made in (0, 1):
            looks = {both: SimpleNamespace(made=made), rest: SimpleNamespace(made=0)}
            patch.setattr(Search, "look", lambda self, atoms, rows, looks=looks: looks[atoms])
            assert search.beside(one, both) is (made > 0)


def in_line_of(change):
    """Return how far a low softmax is in line with a port that has it, whose trial was changed."""
    low = ("softmax-low-precision", "in bfloat16")
    search, here = search_of("model.layers.0.self_attn.o_proj", [low])
    calls, target = rewritten([here[low]], search.trial.graph), search.piece.target
    assert calls
    values = dict(search.trial.dumped)
    values[target] = values[target].copy()
    trial = search.trial.over(values)
    change(trial, values[target], target)
    trial.dumped = values
    return (*in_line(trial, search.piece, {}, calls), values[target].shape)


def test_what_proves_nothing_has_no_say_in_what_is_in_line():
    """By hand: a number of one token is none, and another token is not the port's own."""

    def change(trial, port, target):
        port[0, 3, 0] = np.nan
        port[0, 7] = 1e9
        trial.unseen = {target: np.arange(port.shape[1])[None] == 7}

    found, numbers, (_, tokens, width) = in_line_of(change)
    assert found == pytest.approx(1.0, abs=0.05)
    assert numbers == (tokens - 3) * width


def test_the_token_that_says_most_is_left_out_of_several():
    """By hand: one row of ten is far off, the way of a bug that does nothing to the others."""
    error, way = np.zeros((10, 4)), np.full((10, 4), 1e-3)
    error[3], way[3] = 7.0, 7.0
    left = but_loudest(error, way)
    assert [len(one) for one in left] == [9, 9] and not left[0].any()
    assert len(but_loudest(error[2:5], way[2:5])[0]) == 3


def test_what_cannot_be_computed_is_in_line_with_nothing():
    def change(trial, port, target):
        def fail(number, calls=None):
            raise ValueError

        trial.kept.centres[None] = SimpleNamespace(target=fail, cut=lambda value, axes: value)

    assert in_line_of(change)[:2] == (0.0, 0)


@pytest.mark.parametrize(("found", "numbers", "there"), [
    (0.5, 16, False), (0.5, 200, True), (0.34, 10_000, False),
])  # fmt: skip
def test_a_few_numbers_are_in_line_by_chance(found, numbers, there):
    """By hand: 0.5 of 16 numbers is two standard deviations."""
    one = atom("one", 1)
    trial = SimpleNamespace(graph=SimpleNamespace())
    search = Search(trial, SimpleNamespace(), [])  # pyright: ignore[reportArgumentType]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "in_line", lambda *given: (found, numbers))
        patch.setattr(seen, "rewritten", lambda atoms, graph: {})
        patch.setattr(Search, "routed", False)
        assert search.shown(one, frozenset([one])) is there
