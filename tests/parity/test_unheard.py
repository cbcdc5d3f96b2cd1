"""`check` sees what a backend does only where nobody listens."""

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.kernels import layers
from lockstep.parity.check import check
from tests.fast.kernels import test_layers as usual

many, qwen3 = usual.many, usual.qwen3
PLACES = pytest.mark.parametrize("at", [None, "last:2"])


def checked(path, at):
    port = fast.load(path, backend="cpu")
    return check(reference.load(path), port, [[3, 1, 4]], decode=2, at=at)


@PLACES
def test_a_right_port_takes_both_ways(qwen3, many, at):
    """By law: parity, and each step was also done in one go."""
    result = checked(qwen3, at)
    assert result.verdict == "parity" and many == [3, 3]


@PLACES
def test_what_is_wrong_where_nobody_listens_is_a_divergence_of_logits(qwen3, monkeypatch, at):
    """By hand: less than what the listener's logits may be off by; nothing else is to blame."""
    right = layers.Layers.streams

    def wrong(self, *given):
        found = right(self, *given)
        found[-1][0, 0, 5] *= np.float32(1 + 1e-5)
        return found

    monkeypatch.setattr(layers.Layers, "streams", wrong)
    result = checked(qwen3, at)
    taps = [tap for tap in result.taps if tap.status == "diverged"]
    assert [tap.name for tap in taps] == ["step.1/logits", "step.2/logits"]
    assert taps[0].place.startswith("with nobody listening ")
    assert " of 90 are others: " in taps[0].place
