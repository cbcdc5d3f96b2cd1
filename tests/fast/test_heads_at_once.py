"""Heads that are normalised and turned in one go: when they are, and that nobody can tell."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.kernels import heads
from lockstep.fast.model import load
from tests.every_architecture import write
from tests.tolerances import assert_same_bits

TOKENS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]


EACH = [
    ("qwen3", "float32"),
    ("qwen3", "bfloat16"),
    ("qwen3_moe", "float32"),
    ("wedlm 8B", "float32"),
]


@pytest.fixture(scope="module", params=EACH, ids=" ".join)
def model(tmp_path_factory, request):
    name, dtype = request.param
    path = write(tmp_path_factory.mktemp("model") / "one", name)
    return load(path, backend="cpu", dtype=dtype)


@pytest.fixture
def calls(monkeypatch) -> list[bool]:
    """Note of each call whether a kernel did it."""
    seen, right = list[bool](), heads.normalized_and_turned

    def counted(*given, **options):
        found = right(*given, **options)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(heads, "normalized_and_turned", counted)
    return seen


def steps(model, trace: Callable[..., None] | None = None):
    """Return the logits of a prompt, and of a token behind it."""
    cache = model.make_cache()
    prompt = model.forward(TOKENS, cache=cache, trace=trace)
    return [prompt, model.forward([[7], [8]], cache=cache, trace=trace)]


def test_a_model_says_what_it_says_to_a_listener(model, calls):
    """By law: the same bits, where each layer does it at once and where each part is heard."""
    found, names = steps(model), list[str]()
    assert calls == [True] * 2 * model.config.num_hidden_layers
    heard = steps(model, lambda name, _: names.append(name))
    assert len(calls) == 2 * model.config.num_hidden_layers
    parts = ("q_norm", "k_norm", "q_rope", "k_rope")
    assert {f"model.layers.1.self_attn.{part}" for part in parts} <= {*names}
    for one, other in zip(found, heard, strict=True):
        assert_same_bits(one, other)


def test_other_operations_are_used(model, calls, monkeypatch):
    """By law: a model that was given another rope turns by it."""
    right = {name: getattr(model.ops, name) for name in model.ops.__all__}
    still = SimpleNamespace(**right | {"rope": lambda x, *_, **__: x})
    kept = steps(model)
    calls.clear()
    monkeypatch.setattr(model, "ops", still)
    assert not np.array_equal(steps(model)[0], kept[0]) and not calls


def test_without_numba(model, calls, monkeypatch):
    """By loop: each part is NumPy's."""
    monkeypatch.setattr(kernels, "available", lambda: False)
    assert np.isfinite(steps(model)[1]).all() and not calls
