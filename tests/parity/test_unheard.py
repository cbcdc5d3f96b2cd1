"""`check` sees what a backend does only where nobody listens."""

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.kernels import heads, layers
from lockstep.parity.check import check
from tests.every_architecture import CONFIGS, write
from tests.fast.kernels import test_layers as usual
from tests.sampled import sampled

many, qwen3 = usual.many, usual.qwen3
PLACES = pytest.mark.parametrize("at", [None, "last:2"])


def checked(path, at):
    port = fast.load(path, backend="cpu")
    return check(reference.load(path), port, [[3, 1, 4]], decode=2, at=at)


@sampled(1)
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


@sampled(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_is_taken_again_where_it_goes_another_way(name, tmp_path, monkeypatch):
    """By law: an architecture says that it asks a backend for another way if it does."""
    asked, again = set[str](), []
    right, turned = layers.Layers.streams, heads.normalized_and_turned
    ways = (layers.Layers, "streams", right), (heads, "normalized_and_turned", turned)
    for place, way, does in ways:
        monkeypatch.setattr(place, way, lambda *a, w=way, d=does, **k: asked.add(w) or d(*a, **k))
    path = write(tmp_path / "model", name)
    port = fast.load(path, backend="cpu")
    forward = port.forward
    forward([[3, 1, 4]])
    monkeypatch.setattr(port, "forward", lambda *a, **k: again.append(a) or forward(*a, **k))
    assert port.has_unheard_way is bool(asked)
    assert check(reference.load(path), port, [[3, 1, 4]], decode=2).verdict == "parity"
    assert len(again) == (2 if asked else 0)


def test_other_operations_go_one_way(qwen3, monkeypatch):
    """By hand: a backend's ways are those of its own operations."""
    port = fast.load(qwen3, backend="cpu")
    assert port.has_unheard_way
    monkeypatch.setattr(port, "ops", object())
    assert not port.has_unheard_way
