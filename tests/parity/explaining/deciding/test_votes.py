"""What moves a value by less than a rounding is decided by the bits that it turns. By law."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import votes as module
from lockstep.parity.explaining.deciding.votes import Ballot, Votes, counted, outvoted
from lockstep.parity.faults.rewrites import NORMS, option
from lockstep.parity.graph.graph import Graph, Piece
from tests.parity.explaining.ports import explained, graph_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "models/sliding_bfloat16"
BUG = "rms-eps-wrong"  # 1e-5, where the model has 1e-6


@pytest.fixture(scope="module")
def wrong():
    return port(NAME, [f"{BUG}[eps = 1e-05]"], dtype="bfloat16")


@long
def test_an_epsilon_is_named_with_its_votes(wrong):
    found = explained(NAME, wrong)
    (fault,) = found.faults
    assert (fault.id, fault.variant) == (BUG, "eps = 1e-05")
    assert fault.votes is not None
    assert fault.votes["fault"] >= 8 > fault.votes["right"] == 0
    assert fault.residual_after == fault.residual_before < 2 * fault.noise  # the gate is blind
    assert found.unexplained == []


@long
def test_its_votes_are_bits_that_it_turns(wrong):
    """By law: no more numbers can vote than the bug turned in the whole dump."""
    right = port(NAME, dtype="bfloat16")
    turned = sum(np.count_nonzero(right[tap] != wrong[tap]) for tap in right)
    (fault,) = explained(NAME, wrong).faults
    assert 0 < sum(fault.votes.values()) <= turned


@long
def test_a_right_port_casts_no_votes_for_it():
    assert explained(NAME, port(NAME, dtype="bfloat16")).verdict == "clean"


@long
def test_in_float32_no_votes_are_needed():
    (fault,) = explained(NAME, port(NAME, [f"{BUG}[eps = 1e-05]"])).faults
    assert (fault.id, fault.votes) == (BUG, None)
    assert fault.residual_before > 2 * fault.noise > fault.residual_after


@pytest.mark.parametrize(
    ("votes", "decided"),
    [
        (Votes(8, 0, 0, 4), True),
        (Votes(7, 0, 0, 4), False),  # too few
        (Votes(50, 10, 0, 9), True),
        (Votes(49, 10, 0, 9), False),  # too close
        (Votes(10, 0, 5, 4), True),
        (Votes(10, 0, 6, 4), False),  # the convention is not the port's
        (Votes(35, 0, 0, 3), False),  # one rounding turns much of a row
        (Votes(50, 10, 0, 10, 2), True),
        (Votes(50, 10, 0, 9, 2), False),
        (Votes(0, 100, 0, 0, 9), False),
        (Votes(), False),
    ],
)
def test_when_a_vote_is_won(votes, decided):
    """By hand."""
    assert votes.decided is decided


def test_votes_add_up():
    """By hand."""
    assert Votes(1, 2, 3, 4, 5, 6, 7) + Votes(4, 5, 6, 7, 8, 9, 9) == Votes(5, 7, 9, 11, 13, 15, 16)
    assert Votes(3, 1, 9).share == 0.75 and Votes().share == 0


def test_what_a_bug_leaves_is_counted():
    """By hand: it turns two numbers of five, of which the port has one, and two others."""
    fault, right = np.array([[1, 1, 0, 0, 0]]), np.array([[0, 0, 0, 0, 0]])
    port = np.array([[1, 0, 1, 1, 0]])
    assert counted(fault != right, port == fault, port == right) == Votes(1, 1, 0, 0, 0, 1, 2)


def test_a_token_that_rounding_may_send_to_another_expert_has_no_vote(monkeypatch):
    """By hand: the bug has the port's bits in both tokens, and leaves some; one alone is sure."""
    right, wrong = np.zeros((1, 2, 3)), np.array([[[1, 1, 0], [1, 1, 0]]])
    port = np.array([[[1, 1, 0], [1, 1, 1]]])
    trial = SimpleNamespace(dtype=np.dtype(np.float16), port=lambda target: port)
    monkeypatch.setattr(module, "bits", lambda run, piece, calls, dtype: calls)
    monkeypatch.setattr(module, "own_tokens", lambda *given: None)
    sure = np.array([[[True], [False]]])
    for shown, votes in ((sure, Votes(2, 0, 0, 1, 0, 2, 0)), (~sure, Votes(2, 0, 0, 1, 0, 2, 1))):
        monkeypatch.setattr(module, "telling", lambda *given, shown=shown: shown)
        found = Ballot.count(SimpleNamespace(trial=trial), None, Piece(1, (1,)), wrong, right)  # pyright: ignore[reportArgumentType]
        assert found == votes


@long
def test_what_goes_the_way_of_a_bug_but_farther_is_not_named():
    """By law: an epsilon that is three times as far off as the one that is known."""
    far = option(NORMS, "eps", lambda right: 3e-5)
    found = explained(NAME, port(NAME, [far], dtype="bfloat16"))
    assert found.verdict == "unknown" and found.faults == []
    assert {"below a rounding" in one.shape for one in found.unexplained} == {True}


def ballot_of(votes: dict[str, Votes], beside: dict[str, Votes]) -> Any:
    """Return a ballot on one piece: `votes` at first, and what is `beside` the first winner."""
    piece = Piece(1, (1,))
    ballot = SimpleNamespace(named={})
    now = lambda one: (beside if ballot.named else votes)[one]  # noqa: E731
    ballot.votes = lambda one: (now(one), [piece])
    ballot.between = lambda one, other, piece: Votes()
    ballot.take = lambda one, piece: ballot.named.update({piece.target: one})
    return ballot


def test_a_bug_that_leaves_most_bits_may_account_for_them_beside_a_larger_one():
    """By hand: each leaves what the other turns, so the larger one has to be first."""
    large, small = Votes(90, 0, 0, 9, 0, 90, 20), Votes(20, 0, 0, 9, 0, 20, 90)
    beside = {"small": Votes(20, 0, 0, 9, 0, 20, 0)}
    won, farther = outvoted(ballot_of({"small": small, "large": large}, beside), ["small", "large"])  # pyright: ignore[reportArgumentType]
    assert [one for one, _, _ in won] == ["large", "small"] and farther == []
    won, farther = outvoted(ballot_of({"small": small}, {}), ["small"])  # pyright: ignore[reportArgumentType]
    assert won == [] and [piece.target for piece in farther] == [1]


@pytest.mark.parametrize(("layers", "voted"), [([0, 0], True), ([0, 1], False), ([None, 1], True)])
def test_the_bits_of_several_layers_do_not_speak_for_a_bug_that_alone_gives_them(
    monkeypatch, layers, voted
):
    """By hand: one rounding turns the bits of all later tokens there, and so may any quiet bug."""
    bug, cast = SimpleNamespace(calls=frozenset([0, 1])), Votes(8, 0, 0, 8)
    calls = [SimpleNamespace(layer=layer) for layer in layers]
    graph = SimpleNamespace(calls=calls, consumers=[()] * len(calls))
    graph.shared, graph.several = partial(Graph.shared, graph), partial(Graph.several, graph)
    ballot = Ballot(SimpleNamespace(graph=graph), [], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ballot, "calls", lambda piece, more=(): {})
    monkeypatch.setattr(ballot, "convention", lambda piece, more: (None, 0.99 if more else 0.85))
    monkeypatch.setattr(ballot, "count", lambda *given: cast)
    monkeypatch.setattr(ballot, "likeliest", lambda piece, some: some)
    assert ballot.vote(bug, Piece(1, (0, 1))) == (cast if voted else Votes())  # pyright: ignore[reportArgumentType]


def test_the_own_rounding_of_few_bugs_is_found_out(monkeypatch):
    """By hand: of those that give most bits as right calls round, and as many as the last of them;
    what changes nothing in the piece is none of them."""
    shares = dict(a=0.2, b=0.5, c=0.1, d=0.4, e=0.3, f=0.2)
    monkeypatch.setattr(module, "atoms", lambda one, piece: one != "elsewhere")
    ballot = Ballot(SimpleNamespace(graph=None), [], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ballot, "share_as_right", lambda piece, one: shares[one])
    assert ballot.likeliest(Piece(1, ()), ["elsewhere", *shares]) == ["a", "b", "d", "e", "f"]  # pyright: ignore[reportArgumentType]
    assert ballot.likeliest(Piece(1, ()), []) == []


@pytest.mark.parametrize(
    ("right", "bug", "left", "voted"),
    [
        (0.14, 0.72, 0.9, True),
        (0.14, 0.50, 0.9, False),  # more than half of what was wrong is left
        (0.14, 0.72, 1.1, False),  # the port is nearer to right arithmetic
        (0.60, 0.99, 0.9, False),  # one rounding may have turned all that
    ],
)
def test_where_right_bits_are_few_a_bug_shows_them_in_several_layers(
    monkeypatch, right, bug, left, voted
):
    """By hand."""
    cast, trial = Votes(8, 0, 0, 8), SimpleNamespace()
    trial.graph = SimpleNamespace(several=lambda piece: True)
    trial.look = lambda piece, calls: SimpleNamespace(raw=lambda *rows: left if calls else 1.0)
    ballot = Ballot(trial, [], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(module, "atoms", lambda one, piece: ["bug"] if one else [])
    monkeypatch.setattr(ballot, "calls", lambda piece, more=(): {3: None} if [*more] else {})
    monkeypatch.setattr(ballot, "convention", lambda piece, more: (None, bug if more else right))
    monkeypatch.setattr(ballot, "count", lambda *given: cast)
    assert ballot.vote("bug", Piece(3, (3,))) == (cast if voted else Votes())  # pyright: ignore[reportArgumentType]


def test_of_the_bugs_of_several_layers_the_nearest_are_heard(monkeypatch):
    """By hand: six leave less and less; each is looked at once, and so is right arithmetic."""
    looks: list[int] = []
    lefts = {None: 1.0} | {bug: 0.9 - 0.1 * place for place, bug in enumerate("abcdef")}

    def look(piece, calls):
        looks.append(1)
        return SimpleNamespace(raw=lambda *rows: lefts[next(iter(calls), None)])

    ballot = Ballot(SimpleNamespace(look=look), [], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(module, "atoms", lambda one, piece: [one] if one else [])
    monkeypatch.setattr(ballot, "calls", lambda piece, more=(): {*more})
    ballot.asked = [*"abcdef"]  # pyright: ignore[reportAttributeAccessIssue]
    near = [ballot.is_near(Piece(3, (3,)), one) for one in ballot.asked]
    assert near == [False] * 2 + [True] * module.NEAREST and len(looks) == 7


@long
def test_frequencies_in_half_precision_show_in_the_bits_of_the_logits_alone():
    """By law: right arithmetic gives few bits of them, and the bug nearly all."""
    name, bug = "models/untied_float32", "rope-inv-freq-half[frequencies in bfloat16]"
    taps = port(name, [bug], dtype="bfloat16", level="logits", length=30)
    (found,) = explained(name, taps, length=30).faults
    assert (found.id, found.variant) == ("rope-inv-freq-half", "frequencies in bfloat16")
    assert found.votes["fault"] > 1000 > 100 * found.votes["right"]


def test_the_convention_of_right_calls_is_tried_with_a_bug(monkeypatch):
    """By hand: of a layer with the bug the search for one finds none that agrees."""
    agrees = {("right", False): 0.4, ("right", True): 1.0, ("stuck", True): 0.3}

    def convention_of(trial, pairs):
        name = "stuck" if pairs[0][1] else "right"
        return name, agrees[name, bool(pairs[0][1])]

    monkeypatch.setattr(module, "convention_of", convention_of)
    monkeypatch.setattr(
        module, "agreement", lambda run, trial, pairs: agrees[run, bool(pairs[0][1])]
    )
    trial = SimpleNamespace(graph=SimpleNamespace(kind=lambda piece: ("mlp",)))
    ballot = Ballot(trial, [Piece(3, (3,))], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(module, "atoms", lambda one, piece: ["bug"] if one else [])
    monkeypatch.setattr(ballot, "calls", lambda piece, more=(): {3: None} if [*more] else {})
    assert ballot.convention(ballot.kinds["mlp",][0], None) == ("right", 0.4)
    assert ballot.convention(ballot.kinds["mlp",][0], "bug") == ("right", 1.0)  # pyright: ignore[reportArgumentType]


def test_who_lost_votes_again_beside_the_winner_as_its_pieces_round_then(monkeypatch):
    """By hand: the winner turns nearly all bits, and no other bug is heard before it is known."""
    trial = SimpleNamespace(graph=SimpleNamespace(kind=lambda piece: ("attention",)))
    piece = Piece(3, (3,))
    ballot = Ballot(trial, [piece], {})  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(module, "atoms", lambda one, piece: [one])
    monkeypatch.setattr(module, "convention_of", lambda trial, pairs: (None, len(pairs[0][1])))
    monkeypatch.setattr(ballot, "calls", lambda piece, more=(): {*ballot.named.get(3, ())})

    def votes(one):
        heard = one == "loud" or ballot.convention(piece, None)[1] == 1
        return (Votes(8, 0, 0, 8), [piece]) if heard else (Votes(), [])

    monkeypatch.setattr(ballot, "votes", votes)
    assert ballot.convention(piece, None)[1] == 0
    won, farther = outvoted(ballot, ["quiet", "loud"])  # pyright: ignore[reportArgumentType]
    assert [one for one, _, _ in won] == ["loud", "quiet"] and farther == []


@pytest.mark.parametrize("name", ["models/sliding_bfloat16", "models/untied_float32"])
def test_a_mask_that_layers_share_makes_no_piece_one_of_several(name):
    """By witness: attention is one layer's, though its mask and tables are made with the first."""
    graph = graph_of(name)
    taps = {graph.taps[tap]: None for tap in port(name)}
    pieces = [*graph.pieces(taps)]
    assert any(graph.shared(number) for piece in pieces for number in piece.calls)
    assert not any(map(graph.several, pieces))
    whole = graph.piece(graph.taps["logits"], dict.fromkeys([graph.taps["logits"]]))
    assert graph.several(whole)
