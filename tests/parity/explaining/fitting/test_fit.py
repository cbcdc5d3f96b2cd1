"""How a number is fitted, and when nothing more is tried. By hand: a norm with another epsilon."""

import numpy as np
import pytest

from lockstep.parity.explaining.fitting.fit import Fit
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults.numbers import NUMBERS
from tests.parity.explaining.ports import graph_of, model_of, port

NAME = "models/untied_float32"
(EPSILON,) = NUMBERS["rms-eps-wrong"]
LEAST = EPSILON.within[0]
PLENTY = 10_000


def fit_of(eps: float, most: int) -> Fit:
    """Return the fit of the last norm's epsilon, where the port has `eps`."""
    model, graph, taps = model_of(NAME), graph_of(NAME), port(NAME, level="layers")
    x, gain = taps["model.layers.1"], model.checkpoint.tensor("model.norm.weight")
    mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    taps = taps | {"model.norm": (x / np.sqrt(mean + eps) * gain).astype(np.float32)}
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    target = graph.taps["model.norm"]
    return Fit(trial, graph.piece(target, values), EPSILON, frozenset([target]), most)


def test_a_value_is_found_within_the_work():
    assert fit_of(0.004, PLENTY).value() == 0.004


def test_work_that_is_done_judges_nothing():
    """Nothing was measured, so no value is near: not even the first one, which would pass."""
    fit = fit_of(LEAST, 0)
    assert fit.value() is None
    assert fit.trial.count == 0


@pytest.mark.parametrize("most", [2, 10, 40, 55])
def test_work_that_ends_on_the_way_ends_there(most):
    fit = fit_of(0.004, most)
    assert fit.value() is None
    assert fit.trial.count <= most + 2  # the two ends of a slope are measured together


def test_the_right_value_is_no_other_one(monkeypatch):
    """By hand: where noise is held to be little, the right value itself is the nearest."""
    right = model_of(NAME).config.rms_norm_eps
    monkeypatch.setattr(Fit, "is_nearer", lambda self, value, rows=None: True)
    assert fit_of(right, PLENTY).value() is None
    assert fit_of(1.5 * right, PLENTY).value() is not None


def test_a_value_that_cannot_be_leaves_nothing_to_go_on_from(monkeypatch):
    """By hand: such a value raises when it is computed, as bounds that do not rise do."""

    def refused(self, value):
        raise ValueError("no such value")

    fit = fit_of(0.004, PLENTY)
    assert np.any(fit.error(0.001, None))
    monkeypatch.setattr(Fit, "rewritten", refused)
    assert not np.any(fit.error(0.001, None))
