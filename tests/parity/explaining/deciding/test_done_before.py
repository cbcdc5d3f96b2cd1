"""What is left out behind a value without a name may have been done before it. By law."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import done_before as module
from lockstep.parity.explaining.deciding.verdict import Chosen
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "gemma4/dense"
ORDER, STILL, GAIN = "qk-norm-rope-order", "rope-missing-on-layer-kind", "norm-plus-one-twice"

LEFT_OUT, NORMED = "qk-norm-missing", "models/untied_float32"


def found_in(bugs, unknown):
    known = [one for one in catalogue() if one.id in (ORDER, STILL, GAIN) and one.id != unknown]
    return explained(NAME, port(NAME, bugs), known)


def test_heads_that_turned_before_their_norm_are_not_said_to_stand_still():
    """By hand: the norms, and what comes of them, are wrong in each of three layers."""
    turned = f"{ORDER}[dumped behind both]"
    assert ids(found_in([turned], None)) == {ORDER}
    found = found_in([turned], ORDER)
    assert found.faults == [] and len(found.unexplained) == 9


@long
@pytest.mark.parametrize("unknown", [GAIN, None])
def test_a_rope_that_is_missing_is_named_behind_a_norm_that_is_wrong_otherwise(unknown):
    """Such a norm is wrong at position 0 too, where no turn changes anything."""
    found = found_in([STILL, GAIN], unknown)
    assert STILL in ids(found) and (GAIN in ids(found)) == (unknown is None)


def by_row(ops, weight):
    """Scale each row by a number of its own."""
    return weight * (1 + 0.3 * np.sin(np.arange(len(weight)))[:, None]).astype(weight.dtype)


@rewrite("linear", r"self_attn\.[qk]_proj")
def odd(call, graph):
    return call.with_changed(1, by_row)


@long
def test_a_norm_that_is_missing_is_named_behind_a_projection_without_a_name():
    """Such a norm changes every token: none of them says whether it was done before."""
    found = explained(NORMED, port(NORMED, [odd, LEFT_OUT]))
    assert ids(found) == {LEFT_OUT}
    open_taps = {one.tap.rpartition(".")[2] for one in found.unexplained}
    assert open_taps == {"q_proj", "k_proj"} and len(found.unexplained) == 4


@pytest.mark.parametrize(("calls", "left_out"), [({1}, True), ({2}, False)])
def test_a_turn_that_a_norm_takes_in_is_none_of_its_own_operations(calls, left_out, monkeypatch):
    """By hand: a bug in a call of the piece, and one in a call that another bug brings in."""
    monkeypatch.setattr(module, "rewritten", lambda atoms, graph: dict.fromkeys(calls))
    monkeypatch.setattr(module, "moved_before", lambda call, case: True)
    case: Any = SimpleNamespace(graph=None)
    bug = Atom(Hypothesis(None, "still", "", 0, frozenset(calls)), frozenset(calls))  # pyright: ignore[reportArgumentType]
    assert module.done_before(bug, Piece(1, (0, 1)), case) is left_out


def test_a_norm_that_was_done_before_its_heads_are_dumped_is_not_missing(monkeypatch):
    """By law: then the heads are what should come of the norm, and are read as that; if they are
    not, nothing is said to be missing.
    """
    known = [one for one in catalogue() if one.id == LEFT_OUT]
    taps = port(NORMED)
    for tap in [tap for tap in taps if tap.endswith(("q_norm", "k_norm"))]:
        heads = tap.replace("norm", "proj")
        taps[heads] = taps[tap].reshape(taps[heads].shape)
    assert explained(NORMED, taps, known).verdict == "clean"
    monkeypatch.setattr(import_module("lockstep.parity.explain"), "READINGS", ())
    found = explained(NORMED, taps, known)
    assert found.faults == [] and len(found.unexplained) == 8


def chosen_in(id, places):
    atoms = [Atom(Hypothesis(None, id, "", 0, frozenset([1])), frozenset([1])) for _ in places]  # pyright: ignore[reportArgumentType]
    return Chosen(
        atoms[0].hypothesis, places, atoms, [set() for _ in places], [True for _ in places]
    )


def test_what_is_open_then_is_no_other_bug_s_piece_either(monkeypatch):
    """By hand: a bug is withdrawn from two pieces; others have one of these, or no other one."""
    one, two, three, other = (Piece(number, (number,)) for number in range(4))
    bugs = {"still": [one, two], "some": [two, three], "none": [one]}
    chosen = {(id, ""): chosen_in(id, places) for id, places in bugs.items()}
    case = SimpleNamespace(open=[other], explained=[(piece, []) for piece in (one, two, three)])
    monkeypatch.setattr(
        module, "done_before", lambda atom, piece, case: atom.hypothesis.id == "still"
    )
    module.withdraw_done_before(chosen, case)  # pyright: ignore[reportArgumentType]
    assert {key[0]: bug.pieces for key, bug in chosen.items()} == {"some": [three]}
    assert len(chosen["some", ""].atoms) == len(chosen["some", ""].rivals) == 1
    assert case.open == [other, one, two] and case.explained == [(three, [])]
