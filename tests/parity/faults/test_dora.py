"""Other gains than DoRA's: by formula on a small matrix."""

import numpy as np
import pytest

from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

RNG = np.random.default_rng(29)
X, W, BIAS = RNG.standard_normal((1, 4, 6)), RNG.standard_normal((5, 6)), RNG.standard_normal(5)
A, B, MAGNITUDE = RNG.standard_normal((2, 6)), RNG.standard_normal((5, 2)), np.arange(1.0, 6.0)
SCALE = 3.0
BASE, ADDED = X @ W.T, SCALE * X @ (B @ A).T


def lengths(scale: float) -> np.ndarray:
    return np.linalg.norm(W + scale * B @ A, axis=1)


GAIN = MAGNITUDE / lengths(SCALE)
GIVEN = {
    "over the base's lengths": MAGNITUDE / lengths(0.0) * (BASE + ADDED),
    "over lengths with an update that is not scaled": MAGNITUDE / lengths(1.0) * (BASE + ADDED),
    "over nothing": MAGNITUDE * (BASE + ADDED),
    "on the base alone": GAIN * BASE + ADDED,
    "on the update alone": BASE + GAIN * ADDED,
}


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", GIVEN)
def test_by_formula(name, bias):
    place = {"place": "mlp.up_proj", "layer": 0, "scale": SCALE}
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), W, None, place="mlp.up_proj", layer=0),
        call(2, "add_lora", Value(1), Value(0), A, B, **place),
        call(3, "dora_rescale", Value(2), W, bias, A, B, MAGNITUDE, **place),
    )
    found = wrong(graph, variant("dora-gain-wrong", name))
    np.testing.assert_allclose(found, GIVEN[name] + (0 if bias is None else bias), atol=1e-12)
