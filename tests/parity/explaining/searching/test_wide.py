"""The wide search itself: its measures, its tokens, and how much it may look at."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.searching import wide as module
from lockstep.parity.explaining.searching.segments import Segments
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.wide import Wide, spread_out
from lockstep.parity.explaining.tensors import Tensors
from tests.parity.explaining.ports import graph_of, model_of, port

MODEL = "models/untied_float32"


def test_distances_by_hand():
    """The port is 2 a + b, where b is right; the second token is right already."""
    a, right = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 5.0]])
    few = SimpleNamespace(port=2 * a + right, ends=right)
    wide = Wide(few, [])  # pyright: ignore[reportArgumentType]
    raw, scaled, mixed, token = wide.measures(np.stack([right, a + right, 2 * a + 2 * right]))
    np.testing.assert_allclose(raw, np.sqrt([4 / 26, 1 / 27, 26 / 108]))
    np.testing.assert_allclose(
        scaled, np.sqrt([1 - 26 / 30, 1 - 28**2 / 27 / 30, 1 - 56**2 / 108 / 30]), atol=1e-8
    )
    np.testing.assert_allclose(mixed, [scaled[0], 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(token, np.sqrt([0, 0, 1 / 8]))


def test_huge_numbers_are_near_to_nothing():
    """By law: what is no part of the port is as far as can be, after any factor."""
    port = np.array([[1.0, 0.0, 0.0]])
    few = SimpleNamespace(port=port, ends=np.array([[0.0, 0.0, 1.0]]))
    wide = Wide(few, [])  # pyright: ignore[reportArgumentType]
    _, scaled, mixed, _ = wide.measures(np.array([[[0.0, 1e9, 0.0]], [[1e9, 0.0, 0.0]]]))
    assert scaled.tolist() == [1.0, 0.0] == mixed.tolist()


def test_tokens_are_spread_from_the_first_to_the_last():
    """By hand."""
    assert spread_out(np.arange(40)).tolist() == [0, 8, 16, 23, 31, 39]
    assert spread_out(np.array([3, 4])).tolist() == [3, 4]
    assert spread_out(np.array([], int)).tolist() == []


def test_the_work_is_told_by_the_tokens_wherever_their_axis_is(monkeypatch: pytest.MonkeyPatch):
    """By hand: the values of heads have it behind that of the heads."""
    graph, taps = graph_of(MODEL), port(MODEL)
    number = graph.taps["model.layers.0.self_attn.q_rope"]
    assert graph.shapes[number][1] != graph.shapes[number][2] == 20
    values = {graph.taps["model.embed_tokens"]: taps["model.embed_tokens"]}
    values[number] = np.zeros(graph.shapes[number], np.float32)
    model = model_of(MODEL)
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(number, values)
    monkeypatch.setattr(module, "WORK", 1e6)
    few = SimpleNamespace(trial=trial, piece=piece)
    price = Segments(trial, piece, []).price
    assert Wide(few, []).most == pytest.approx(1e6 / (20 * price))  # pyright: ignore[reportArgumentType]
