"""Projections that were never loaded are known by their size and by nothing else. By law."""

import warnings

import numpy as np
import pytest

from lockstep.parity.explaining.untrained import Sample
from tests.parity.explaining.ports import explained, port

NAME = "models/untied_float32"
RIGHT = port(NAME)


def projected(weight_of):
    """Return a dump in which one projection is by another matrix, from inputs of its own."""
    taps = dict(RIGHT)
    x = taps["model.layers.1.post_attention_layernorm"]
    y = taps["model.layers.1.mlp.gate_proj"]
    taps["model.layers.1.mlp.gate_proj"] = (x @ weight_of((x.shape[-1], y.shape[-1]))).astype(
        np.float32
    )
    return taps


def drawn(deviation):
    return lambda shape: np.random.default_rng(5).standard_normal(shape) * deviation


def test_random_numbers_of_a_fresh_module_are_named():
    found = explained(NAME, projected(drawn(0.02)))
    (fault,) = (one for one in found.faults if one.taps == ["model.layers.1.mlp.gate_proj"])
    assert fault.id == "strict-false-drops-tensors"
    assert fault.variant == "never loaded: random numbers of deviation 0.02"


@pytest.mark.parametrize("deviation", [0.005, 0.035, 0.2, 2.0])
def test_random_numbers_of_another_size_have_no_name(deviation):
    found = explained(NAME, projected(drawn(deviation)))
    assert "model.layers.1.mlp.gate_proj" in {one.tap for one in found.unexplained}


def test_numbers_that_cannot_be_squared_have_no_size():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sample(np.full((40, 40), 1e200), np.ones((40, 40)), 40).size is None


def test_a_right_port_was_loaded():
    assert explained(NAME, RIGHT).verdict == "clean"
