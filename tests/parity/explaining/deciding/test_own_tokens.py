"""One bit that turned by chance is one piece of evidence, however many tokens see it. By law."""

from collections import Counter, OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from lockstep.parity.explaining.deciding.own_tokens import own_tokens
from lockstep.parity.explaining.deciding.votes import Ballot, Votes
from lockstep.parity.explaining.searching.runs import Kept
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, by_queries
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import graph_of, model_of

NAME, TOKENS = "models/untied_float32", 20
FLOAT32 = np.dtype(np.float32)
GRAPH = graph_of(NAME, TOKENS)
VALUES, LAYER = (GRAPH.taps[f"model.layers.0{tap}"] for tap in (".self_attn.v_proj", ""))
RUN = Evaluator(GRAPH, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model_of(NAME).checkpoint))


def turned(*tokens, number=VALUES):
    """Return a call whose result is another one in some tokens."""

    def after(ops, x):
        x = x.copy()
        x[:, list(tokens)] *= 1.25
        return x

    return {number: GRAPH.calls[number].followed(after)}


def ballot(port):
    trial = SimpleNamespace(
        dtype=FLOAT32,
        graph=GRAPH,
        port=lambda target: port,
        kept=Kept(),
        unsure=lambda *given: None,
    )
    return Ballot(trial, [], {})  # pyright: ignore[reportArgumentType]


def votes_for(port, wrong):
    return ballot(RUN.target(LAYER, port)).count(RUN, Piece(LAYER, ()), wrong, {})


def test_a_token_that_only_sees_another_is_not_its_own():
    wrong = turned(5)
    seen = (RUN.target(LAYER, wrong) != RUN.target(LAYER)).any(axis=(0, 2))
    assert np.flatnonzero(seen).tolist() == [*range(5, TOKENS)]
    own = own_tokens(RUN, LAYER, wrong, {})
    assert own is not None and np.flatnonzero(own).tolist() == [5]


def test_what_both_have_is_no_difference():
    both = turned(3)
    assert own_tokens(RUN, LAYER, both, both) is None
    more = both | turned(7, number=LAYER)
    own = own_tokens(RUN, LAYER, more, both)
    assert own is not None and np.flatnonzero(own).tolist() == [7]


def test_a_call_without_tokens_says_nothing():
    axes = (() if number == VALUES else one for number, one in enumerate(GRAPH.token_axes))
    graph = replace(GRAPH, token_axes=tuple(axes))
    assert own_tokens(replace(RUN, graph=graph), LAYER, turned(5), {}) is None


def test_a_bit_that_turned_by_chance_wins_no_vote():
    """The port has what the bug makes of token 5, and no bug: its later tokens see that one bit."""
    votes = votes_for(turned(5), turned(5))
    assert votes.rows == 1 and votes.right == 0 and not votes.decided


def test_a_bug_of_many_tokens_wins_its_vote():
    votes = votes_for(turned(*range(5, TOKENS)), turned(*range(5, TOKENS)))
    assert votes.rows == TOKENS - 5 and votes.decided
    right = votes_for({}, turned(5))
    assert right == Votes(right=right.right, against=TOKENS - 5) and right.right > 0


def test_a_token_that_only_sees_another_votes_against_a_bug():
    """Later tokens see twelve that are as the bug makes them, and are right themselves."""
    wrong = turned(*range(5, 17))
    port, right = RUN.target(LAYER, wrong).copy(), RUN.target(LAYER)
    port[:, 17:] = right[:, 17:]
    votes = ballot(port).count(RUN, Piece(LAYER, ()), wrong, {})
    later = int(np.count_nonzero(RUN.target(LAYER, wrong)[:, 17:] != right[:, 17:]))
    assert (votes.right, votes.rows, votes.against) == (later, 12, 3)
    assert votes.fault < 5 * votes.right and not votes.decided


def test_a_large_matrix_is_never_there_as_a_whole(monkeypatch):
    """By law: scores that were put off part in the tokens whose average parts."""
    scores = next(call for call in GRAPH.calls if call.op == "attention_scores")
    bent = replace(scores, options={"scale": 1.01 * scores.options["scale"]})
    at_once = own_tokens(RUN, LAYER, {scores.number: bent}, {})
    joined, made = by_queries.joined, set()
    monkeypatch.setattr(by_queries, "LARGE", 1)
    monkeypatch.setattr(by_queries, "BLOCK", 8 * 4 * 4 * TOKENS)
    monkeypatch.setattr(
        by_queries, "joined", lambda one, *rest: made.add(one.op) or joined(one, *rest)
    )
    own = own_tokens(replace(RUN, kept=OrderedDict()), LAYER, {scores.number: bent}, {})
    assert made == {"attention_context"}
    assert own is not None and np.flatnonzero(own).tolist() == [*range(1, TOKENS)]
    assert (own == at_once).all()


def test_what_both_have_is_computed_once():
    """However many calls of one bug differ, all behind the other bug is computed once."""
    asked = Counter()

    class Counted(Evaluator):
        def compute(self, call, values):
            asked[call.number] += 1
            return super().compute(call, values)

    run = Counted(GRAPH, RUN.ops, RUN.dtype, {}, RUN.read)
    norms = [call.number for call in GRAPH.calls if call.op == "rms_norm"]
    other = turned(3, number=norms[0])
    one = other | {norm: turned(5, number=norm)[norm] for norm in norms[1:]}
    own = own_tokens(run, GRAPH.taps["logits"], one, other)
    assert own is not None and np.flatnonzero(own).tolist() == [5]
    assert len(norms) > 3 and max(asked.values()) == 2
