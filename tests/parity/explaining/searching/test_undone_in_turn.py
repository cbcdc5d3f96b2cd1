"""What several layers and the head make of a value is undone, token by token. By law."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.searching import undone_in_turn as module
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.undone_in_turn import TOKENS, InTurn
from lockstep.parity.explaining.searching.untrained import farthest
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import explained, graph_of, ids, is_of, model_of
from tests.parity.explaining.ports import port as port_of
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME, CUT = "models/untied_float32", "model.layers.0.residual"
FLOAT32 = np.dtype(np.float32)


def logits_with(deviation):
    """Return what a port's logits are, and its residual stream, if the first layer's heads meet a
    matrix of random numbers.
    """
    model, graph = model_of(NAME), graph_of(NAME)
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    call = next(one for one in graph.calls if one.place.endswith("o_proj"))

    def drawn(ops, weight):
        numbers = np.random.default_rng(5).standard_normal(weight.shape)
        return (deviation * numbers).astype(weight.dtype)

    wrong = {call.number: call.with_changed(1, drawn)}
    return [run.target(graph.taps[tap], wrong) for tap in ("logits", CUT)]


def trial_of(logits):
    model, graph = model_of(NAME), graph_of(NAME)
    values = {graph.taps["logits"]: logits}
    return Trial(graph, model.ops, FLOAT32, values, Tensors(model.checkpoint))


def led_back(port, off, farthest=np.inf):
    """Return a start that is `off` by a share of its size in each number, and what it is led to."""
    graph, (logits, value) = graph_of(NAME), port
    signs = np.sign(np.random.default_rng(2).standard_normal(value.shape))
    start = value + off * signs * np.sqrt(np.mean(value**2))
    piece = graph.piece(graph.taps["logits"], {graph.taps["logits"]: logits})
    most = np.full(value.shape[1], farthest)
    return start, InTurn(trial_of(logits), piece).undone(graph.taps[CUT], start, most)


def ends(value):
    """Return the logits that the first tokens of a value lead to."""
    graph, model = graph_of(NAME), model_of(NAME)
    kept = {graph.taps[CUT]: value}
    run = Evaluator(graph, model.ops, FLOAT32, kept, Tensors(model.checkpoint))
    return run.target(graph.taps["logits"])[0, :TOKENS]


def size(value):
    return np.sqrt(np.mean(np.square(value)))


@pytest.fixture(scope="module")
def port():
    return logits_with(0.02)


def test_the_first_tokens_are_led_back_to_what_the_port_has(port):
    """From a value of which each number is off by a fifth: it is led to one that is nearer."""
    start, found = led_back(port, 0.2)
    assert found is not None
    value, known = found
    assert known.tolist() == [True] * TOKENS + [False] * (20 - TOKENS)
    logits, right = port[0][0, :TOKENS], port[1]
    assert size(ends(start.astype(np.float32)) - logits) > 0.1 * size(logits)
    assert size(ends(value.astype(np.float32)) - logits) < 0.015 * size(logits)
    assert size((value - right)[0, known]) < 0.7 * size((start - right)[0, known])


def test_what_is_found_too_far_away_is_not_it(port):
    assert led_back(port, 0.2, farthest=0.0)[1] is None


def test_a_model_of_real_size_is_left(port, monkeypatch):
    monkeypatch.setattr(module, "BYTES", 1000)
    assert led_back(port, 0.2)[1] is None


def test_a_piece_is_left_that_took_too_much_work(port, monkeypatch):
    """By hand: what one value took counts for the next one of the piece."""
    graph, (logits, value) = graph_of(NAME), port
    number, cut = graph.taps["logits"], graph.taps[CUT]
    in_turn = InTurn(trial_of(logits), graph.piece(number, {number: logits}))
    most = np.full(value.shape[1], np.inf)
    assert in_turn.undone(cut, value, most) is not None
    monkeypatch.setattr(module, "WORK", 1.5 * in_turn.spent)
    assert in_turn.undone(cut, value, most) is None


@long
@pytest.mark.parametrize("length", [1, 2])
def test_a_prompt_of_one_token_or_two_shows_no_matrix(length):
    known = [one for one in catalogue() if one.id == "strict-false-drops-tensors"]
    graph = graph_of(NAME, length)
    logits = 5 * np.random.default_rng(1).standard_normal(graph.shapes[graph.taps["logits"]])
    found = explained(NAME, {"logits": logits.astype(np.float32)}, known, length=length)
    assert found.faults == [] and [one.tap for one in found.unexplained] == ["logits"]


def test_what_the_port_dumped_behind_a_value_is_taken():
    """By law: the rest of a piece is what it is, computed from what the piece is computed from."""
    model, graph, taps = model_of(NAME), graph_of(NAME), port_of(NAME)
    inner = f"model.layers.{graph.config.num_hidden_layers - 1}.self_attn.v_proj"
    values = {graph.taps["logits"]: taps["logits"], graph.taps[inner]: 3 * taps[inner]}
    trial = Trial(graph, model.ops, FLOAT32, values, Tensors(model.checkpoint))
    piece, cut = graph.piece(graph.taps["logits"], values), graph.taps[CUT]
    value = trial.centre(None).target(cut)
    ends = InTurn(trial, piece).continued(cut, value[:, :TOKENS], np.zeros((1, value.shape[-1])))
    wanted = trial.centre(TOKENS).target(piece.target)[:, -1]
    np.testing.assert_allclose(ends, wanted, rtol=1e-9)


def test_how_far_a_value_may_be_is_told_by_the_inputs_of_the_port():
    """By law: of inputs three times as large, three times as far."""
    graph, taps = graph_of(NAME), port_of(NAME)
    call = next(one for one in graph.calls if one.place.endswith("o_proj"))
    number = call.inputs[0].number
    value = trial_of(taps["logits"]).centre(None).target(number)

    def found(dumped):
        trial = trial_of(taps["logits"])
        trial = trial.over(trial.dumped | dumped)
        return farthest(call, SimpleNamespace(trial=trial, graph=graph, dumped=trial.dumped))

    np.testing.assert_allclose(found({number: 3 * value}), 3 * found({}), rtol=1e-9)


@long
@pytest.mark.parametrize(("deviation", "named"), [(0.02, True), (0.006, False), (0.05, False)])
def test_random_numbers_of_an_early_layer_are_named_from_the_logits(deviation, named):
    known = [one for one in catalogue() if one.id == "strict-false-drops-tensors"]
    found = explained(NAME, {"logits": logits_with(deviation)[0]}, known)
    assert ids(found) == ({known[0].id} if named else set())
    assert [one.layers for one in found.faults] == [[0]] * named
    assert bool(found.unexplained) != named


@sampled(1, "0.02-True-logits")
@pytest.mark.parametrize("level", ["logits", "layers"])
@pytest.mark.parametrize(("deviation", "named"), [(0.02, True), (0.05, False)])
def test_a_head_of_random_numbers_is_named_by_logits_that_are_bounded(deviation, named, level):
    name = "gemma4/dense"
    model, graph = model_of(name), graph_of(name)
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    call = next(one for one in graph.calls if one.place == "lm_head" and one.op == "linear")

    def drawn(ops, weight):
        numbers = np.random.default_rng(5).standard_normal(weight.shape)
        return (deviation * numbers).astype(weight.dtype)

    last = graph.taps["logits"]
    wrong = {call.number: call.with_changed(1, drawn)}
    taps = {tap: run.target(n, wrong) for tap, n in graph.taps.items() if is_of(level, tap)}
    assert last != call.number
    known = [one for one in catalogue() if one.id == "tied-head-mishandled"]
    found = explained(name, taps, known)
    assert ids(found) == ({known[0].id} if named else set())
