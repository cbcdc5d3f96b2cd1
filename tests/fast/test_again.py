"""Parts of a layer that are run again for each token: when they are, and that nobody can tell."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.fast.model import load
from tests.every_architecture import write
from tests.tolerances import assert_same_bits


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(tmp_path_factory, request):
    return load(write(tmp_path_factory.mktemp("model") / "one", request.param), backend="cpu")


def steps(model, trace=None):
    """Return the logits of a prompt, and of five tokens behind it."""
    cache = model.make_cache()
    found = [model.forward([[3, 1, 4]], cache=cache, trace=trace)]
    return found + [model.forward([[token]], cache=cache, trace=trace) for token in range(5)]


def test_a_model_says_what_it_says_to_a_listener(model):
    """By law: the same bits, again and again; whoever listens hears every part."""
    names = list[str]()
    heard = steps(model, lambda name, _: names.append(name))
    for found in (steps(model), steps(model)):
        for one, other in zip(found, heard, strict=True):
            assert_same_bits(one, other)
    assert len(model.replays.known) == 2 * model.config.num_hidden_layers
    assert names.count("model.layers.1.mlp.down_proj") == 6


def test_other_operations_and_weights_are_used(model, monkeypatch):
    """By law: a model that was given another sum, or another gain, computes with it."""
    kept = steps(model)
    right = {name: getattr(model.ops, name) for name in model.ops.__all__}
    still = SimpleNamespace(**right | {"add": lambda x, y: x})
    with monkeypatch.context() as other:
        other.setattr(model, "ops", still)
        assert not np.array_equal(steps(model)[5], kept[5])
    name = "model.layers.0.input_layernorm.weight"
    monkeypatch.setitem(model.weights, name, 2 * model.weights[name])
    assert not np.array_equal(steps(model)[5], kept[5])
    monkeypatch.undo()
    assert_same_bits(steps(model)[5], kept[5])
