"""Two bugs below a rounding that hide each other's votes are heard together. By witness."""

from functools import cache

import numpy as np
import pytest

from lockstep.parity.explaining.deciding.subtle import withdraw_noise
from lockstep.parity.explaining.deciding.two_roundings import every, freed_of_noise, heard_together
from lockstep.parity.explaining.deciding.verdict import Chosen
from lockstep.parity.explaining.deciding.votes import Ballot, atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, hypotheses
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, graph_of, model_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "models/sliding_bfloat16"
TWO = {
    "softmax-low-precision": "in bfloat16",
    "rope-inv-freq-half": "frequencies in bfloat16",
}


@long
@pytest.mark.parametrize("more", [{}, {"rms-eps-wrong": "eps = 1e-05"}])
def test_both_are_named_whatever_else_is_heard(more):
    bugs = TWO | more
    dump = port(NAME, [f"{id}[{variant}]" for id, variant in bugs.items()], dtype="bfloat16")
    found = explained(NAME, dump)
    assert {one.id: one.variant for one in found.faults} == bugs
    votes = [one.votes for one in found.faults if one.id in TWO]
    assert all(one and one["fault"] > 100 * one["right"] for one in votes)


def test_nobody_is_asked_where_right_calls_give_the_ports_bits(monkeypatch):
    """By hand: of a piece that is heard no two bugs are thought of."""
    graph = type("Of", (), {"several": lambda self, piece: False, "kind": lambda self, piece: ""})()
    trial = type("Trial", (), {"graph": graph})()
    piece = Piece(7, ())
    ballot = Ballot(trial, [piece], {})  # pyright: ignore[reportArgumentType]
    asked = []
    module = "lockstep.parity.explaining.deciding.two_roundings"
    monkeypatch.setattr(f"{module}.atoms", lambda one, piece: [one])
    monkeypatch.setattr(f"{module}.likely", lambda *given: asked.append(given) or [])
    for share in (0.95, 0.5):
        monkeypatch.setattr(ballot, "faithful", lambda piece, s=share: s)
        assert heard_together(ballot, ["one", "other"]) == []  # pyright: ignore[reportArgumentType]
        assert len(asked) == (share < 0.9)


UNTIED = "models/untied_float32"
HIDDEN = ("softmax-low-precision", "sdpa-scale-folded-half")
NOISE = ("keys-and-values-in-half", "keys alone, in bfloat16")
NORM = ("norm-low-precision-accumulate", "each step in float16")


@cache
def every_bug() -> dict[tuple[str, str], Hypothesis]:
    return {(one.id, one.variant): one for one in hypotheses(catalogue(), graph_of(UNTIED))}


def behind_noise(*bugs: tuple[str, str]) -> Ballot:
    """Return the ballot of the first layer of a port with bugs, where a convention that makes noise
    is taken for granted.
    """
    model, graph = model_of(UNTIED), graph_of(UNTIED)
    taps = port(UNTIED, [f"{id}[{how}]" for id, how in bugs], dtype="float16", level="layers")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float16), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["model.layers.0"], values)
    return Ballot(trial, [piece], {piece.target: frozenset(atoms(every_bug()[NOISE], piece))})


@long
@pytest.mark.parametrize("hidden", [HIDDEN, HIDDEN[:1]])
def test_what_noise_stood_for_is_heard_and_frees_its_pieces(hidden):
    """By witness: keys in half precision passed the gate in the place of two bugs, or of one."""
    ballot = behind_noise(*((id, "in bfloat16") for id in hidden))
    found = heard_together(ballot, [every_bug()[id, "in bfloat16"] for id in HIDDEN])
    assert {one.id for one, _, _ in found} == {*hidden}
    assert all(votes.fault > 100 * votes.right for _, votes, _ in found)
    assert freed_of_noise(ballot, found) == every(ballot)


def test_noise_that_is_there_stays_beside_a_bug_that_is_heard():
    """By witness: without keys in bfloat16 the bug alone does not give the port's bits."""
    ballot, bug = behind_noise(NOISE, NORM), every_bug()[NORM]
    (piece,) = every(ballot)
    votes = ballot.vote(bug, piece)
    assert votes.decided
    assert freed_of_noise(ballot, [(bug, votes, [piece])]) == []


def test_a_convention_that_noise_was_taken_for_is_withdrawn():
    """By hand: where quiet bugs give the bits of each of its pieces without it."""
    noise = every_bug()[NOISE]
    one, other = Piece(1, ()), Piece(2, ())
    for pieces, left in (([one], []), ([one, other], ["noise"])):
        chosen = {("noise", ""): Chosen(noise, pieces)}
        withdraw_noise(chosen, [one])
        assert [id for id, _ in chosen] == left
