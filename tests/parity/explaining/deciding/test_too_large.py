"""A float16 port whose numbers overflow because of other bugs. By law."""

import pytest

from lockstep.parity.explaining.deciding import too_large
from lockstep.parity.faults.rewrites import afterwards
from tests.parity.explaining.ports import explained, ids, port

NAME = "models/untied_float32"
OVERFLOW = "fp16-mlp-product-overflow"


@pytest.fixture(scope="module")
def taps():
    """The stream is 200 times too large, and goes into the MLP as it is."""
    large = afterwards("embedding", lambda ops, x: x * x.dtype.type(200))
    return port(NAME, [large, "norm-result-discarded"], dtype="float16")


def test_what_the_right_model_holds_is_a_note(taps):
    found = explained(NAME, taps)
    assert ids(found) == {"norm-result-discarded"}
    (line,) = (one for one in found.conventions if "too large for float16" in one)
    assert "model.layers.0.mlp.down_proj" in line and "of 65504" in line


def test_what_the_right_model_does_not_hold_either_is_a_bug(taps, monkeypatch):
    monkeypatch.setattr(too_large, "LARGEST", 1.0)
    found = explained(NAME, taps)
    assert ids(found) == {"norm-result-discarded", OVERFLOW}
    assert not any("too large for float16" in one for one in found.conventions)
