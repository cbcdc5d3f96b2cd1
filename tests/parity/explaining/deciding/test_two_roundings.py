"""Two bugs below a rounding that hide each other's votes are heard together. By witness."""

import numpy as np
import pytest

from lockstep.parity.explaining.deciding.subtle import withdraw_noise
from lockstep.parity.explaining.deciding.two_roundings import heard_together
from lockstep.parity.explaining.deciding.verdict import Chosen
from lockstep.parity.explaining.deciding.votes import Ballot, atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, hypotheses
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, graph_of, model_of, port

NAME = "models/sliding_bfloat16"
TWO = {
    "softmax-low-precision": "in bfloat16",
    "rope-inv-freq-half": "frequencies in bfloat16",
}


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


def noise_for_two(level: str = "layers") -> tuple[Ballot, list[Hypothesis]]:
    """Return a ballot in which a convention that makes noise stands for the two bugs of a port."""
    name, two = "models/untied_float32", ("softmax-low-precision", "sdpa-scale-folded-half")
    model, graph = model_of(name), graph_of(name)
    taps = port(name, [f"{id}[in bfloat16]" for id in two], dtype="float16", level=level)
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float16), values, Tensors(model.checkpoint))
    every = {(one.id, one.variant): one for one in hypotheses(catalogue(), graph)}
    noise = every["keys-and-values-in-half", "keys alone, in bfloat16"]
    piece = graph.piece(graph.taps["model.layers.0"], values)
    ballot = Ballot(trial, [piece], {piece.target: frozenset(atoms(noise, piece))})
    return ballot, [every[id, "in bfloat16"] for id in two]


def test_two_bugs_that_noise_stood_for_are_heard():
    """By witness: keys in half precision passed the gate in their place."""
    ballot, two = noise_for_two()
    found = heard_together(ballot, two)
    assert {one.id for one, _, _ in found} == {one.id for one in two}
    assert all(votes.fault > 100 * votes.right for _, votes, _ in found)


def test_a_convention_that_noise_was_taken_for_is_withdrawn():
    """By hand: where quiet bugs give the bits of each of its pieces without it."""
    ballot, _ = noise_for_two()
    (atom,) = next(iter(ballot.named.values()))
    one, other = Piece(1, ()), Piece(2, ())
    for pieces, left in (([one], []), ([one, other], ["noise"])):
        chosen = {("noise", ""): Chosen(atom.hypothesis, pieces)}
        withdraw_noise(chosen, [one])
        assert [id for id, _ in chosen] == left
