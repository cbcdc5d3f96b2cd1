"""What lies behind a bottleneck is undone. By law: the value that the port had there is found."""

import numpy as np

from lockstep.parity.explaining.searching import undone as module
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.undone import led_back, undone
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import graph_of, is_of, model_of, rewrite_of

NAME = "models/untied_float32"
MIDDLE, END = "model.layers.0.residual", "model.layers.0"


def of_port(*bugs, name=NAME, also=()):
    """Return the trial of a port's layers, and of some taps more, and what else it had."""
    model, graph = model_of(name), graph_of(name)
    read, kind = Tensors(model.checkpoint), np.dtype(np.float32)
    calls = {c.number: wrong for bug in bugs for c in graph.calls
             if (wrong := rewrite_of(bug)(c, graph))}  # fmt: skip
    run = Evaluator(graph, ways(kind)[1][0], kind, {}, read)
    taps = {tap: run.target(number, calls) for tap, number in graph.taps.items()}
    kept = {tap for tap in taps if is_of("layers", tap)} | {*also}
    return Trial(graph, model.ops, kind, {graph.taps[tap]: taps[tap] for tap in kept}, read), taps


def test_the_residual_between_attention_and_mlp_is_found():
    """From a value that is a tenth too large; the right computation has another one altogether."""
    trial, taps = of_port("attn-scale-missing")
    piece, port = trial.graph.piece(trial.graph.taps[END], trial.dumped), taps[MIDDLE]
    found = undone(trial, piece, trial.graph.taps[MIDDLE], 1.1 * port.astype(np.float64))
    assert found is not None
    value, arrived = found
    assert arrived.shape == (20,) and arrived.sum() >= 15
    off = np.abs(value - port).max(axis=(0, 2)) / np.abs(port).max()
    assert np.sum(off[arrived] < 1e-4) >= 15
    right = trial.centre(None).target(trial.graph.taps[MIDDLE])
    assert np.abs(right - port).max() > 0.05 * np.abs(port).max()


def test_what_tokens_share_is_not_undone():
    """By hand: an embedding goes through attention, so no token is led back by itself."""
    trial, _ = of_port("attn-scale-missing")
    del trial.dumped[trial.graph.taps["model.embed_tokens"]]
    trial.forget()
    first = trial.graph.taps["model.embed_tokens"]
    piece = trial.graph.piece(trial.graph.taps[END], trial.dumped)
    assert undone(trial, piece, first, trial.centre(None).target(first)) is None


def test_a_model_of_real_size_is_left(monkeypatch):
    trial, taps = of_port("attn-scale-missing")
    piece = trial.graph.piece(trial.graph.taps[END], trial.dumped)
    monkeypatch.setattr(module, "BYTES", 1000)
    assert undone(trial, piece, trial.graph.taps[MIDDLE], taps[MIDDLE].astype(float)) is None


def test_what_a_norm_took_is_found_from_nothing():
    """By law, also where it is a hundred times larger than the root of `eps`, in most tokens."""
    trial, taps = of_port(name="gemma4/dense")
    graph = trial.graph
    piece = graph.piece(graph.taps[END], trial.dumped)
    cut = graph.taps["model.layers.0.self_attn.o_proj"]
    port = taps["model.layers.0.self_attn.o_proj"]
    found = undone(trial, piece, cut, np.zeros(port.shape))
    assert found is not None
    value, arrived = found
    off = np.linalg.norm(value - port, axis=-1) / np.linalg.norm(port, axis=-1)
    assert np.mean(off[0][arrived] < 0.2) >= 0.8


def test_a_token_that_goes_nowhere_keeps_no_other_from_arriving():
    """By hand: of two tokens one is asked for a number that no hyperbolic tangent gives."""
    value, port = np.zeros((1, 2, 3)), np.array([[[0.5, -0.2, 0.1], [2.0, 0.1, 0.1]]])
    found = led_back(value, port, np.tanh, steps=40)
    assert found is not None
    assert found[1].tolist() == [True, False]
    assert np.allclose(np.tanh(found[0][0, 0]), port[0, 0])


def test_what_a_norm_took_is_found_where_the_sum_behind_it_was_dumped():
    """By law: then that sum is the end of the piece."""
    trial, taps = of_port(name="gemma4/dense", also=[MIDDLE])
    graph = trial.graph
    piece = graph.piece(graph.taps[MIDDLE], trial.dumped)
    port = taps["model.layers.0.self_attn.o_proj"]
    cut = graph.taps["model.layers.0.self_attn.o_proj"]
    found = undone(trial, piece, cut, np.zeros(port.shape))
    assert found is not None and found[1].mean() >= 0.9
    off = np.linalg.norm(found[0] - port, axis=-1) / np.linalg.norm(port, axis=-1)
    assert np.mean(off[0][found[1]] < 0.2) >= 0.8


def test_where_a_token_is_not_found_the_others_are_not_said_to_be():
    """By hand: the first way loses a token far away; the second is asked for what it has of it."""
    value = np.zeros((1, 3, 2))

    def way(cut, end, x):
        return np.tanh(x) if end == 1 else np.where(np.arange(3)[:, None] == 2, 1.0, x + 0.1)

    port = np.array([[[0.5, 0.3], [-0.2, 0.4], [9.0, 9.0]]])
    found, known = module.through_a_norm(way, (0, 1, 2), value, port, 1e-9)
    assert known.tolist() == [True, True, False]
    np.testing.assert_allclose(np.tanh(found[0, :2]) + 0.1, port[0, :2], atol=1e-8)
