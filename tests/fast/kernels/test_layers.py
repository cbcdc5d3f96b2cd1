"""Layers for one token in one go: when they are, and that nobody can tell."""

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest

from lockstep.fast.kernels import few, kernel, layers
from lockstep.fast.kernels.tile import possible
from lockstep.fast.model import load
from lockstep.parity.noise.random_checkpoint import packed, safetensors
from lockstep.reference.checkpoint.config import read_config
from lockstep.reference.precision import dtype_named
from lockstep.reference.stores.growing import Growing
from tests.every_architecture import CONFIGS, weight
from tests.sampled import sampled
from tests.tolerances import assert_same_bits

WIDE = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 3}
WIDE |= {"max_position_embeddings": 512, "use_sliding_window": False}
WHOLE = possible(8 * 2)  # codes of 4 bits, two sets of which are shared
AS_THEY_LIE = 4 if WHOLE else 8  # bits of codes that need no sorting of what meets them
UNTIL_LOST = 1 if WHOLE else 3  # layers before numbers that digits lose, and floats do not
# Of each the architecture, how it is stored, and what is other than usual.
FORMS = {
    "MLX 4 bits, or 8": ("qwen3", AS_THEY_LIE, {}),
    "MLX 3 bits": ("qwen3", 3, {}),
    "bfloat16": ("qwen3", "bfloat16", {}),
    "with biases": ("qwen2", AS_THEY_LIE, {}),
    "no head shared": ("llama", "float16", {"num_key_value_heads": 4}),
}


def written(folder: Path, name: str, kept: int | str = AS_THEY_LIE, **changes: Any) -> Path:
    """Write a checkpoint in a dtype, or packed to so many bits."""
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | WIDE | changes))
    parsed = read_config(folder / "config.json", ignore=())
    rng, shapes = np.random.default_rng(1), parsed.architecture.tensors(parsed.config)
    stored = dtype_named(kept) if isinstance(kept, str) else np.float32
    drawn = {path: weight(path, shape, rng).astype(stored) for path, shape in shapes.items()}
    if isinstance(kept, int):
        drawn, quantised = packed(drawn, kept), {"group_size": 32, "bits": kept}
        told = CONFIGS[name] | WIDE | changes | {"quantization": quantised}
        (folder / "config.json").write_text(json.dumps(told))
    (folder / "model.safetensors").write_bytes(safetensors(drawn))
    return folder


@pytest.fixture(scope="module", params=FORMS)
def path(tmp_path_factory, request):
    name, kept, changes = FORMS[request.param]
    return written(tmp_path_factory.mktemp("model"), name, kept, **changes)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return written(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture
def many(monkeypatch) -> list[int]:
    """Note of each forward pass how many layers were done in one go."""
    seen, right = list[int](), layers.Layers.streams

    def counted(self, *given):
        found = right(self, *given)
        seen.append(len(found))
        return found

    monkeypatch.setattr(layers.Layers, "streams", counted)
    return seen


def steps(model, trace=None, cache=None, first=(3, 1, 4), tokens=range(5)):
    """Return the logits of a prompt, and of tokens behind it one by one."""
    cache = model.make_cache() if cache is None else cache
    found = [model.forward([[*first]], cache=cache, trace=trace)]
    return found + [model.forward([[token]], cache=cache, trace=trace) for token in tokens]


def heard(model, **given):
    """Do it by operations: somebody listens."""
    return steps(model, lambda name, value: None, **given)


def assert_alike(found, other):
    for one, two in zip(found, other, strict=True):
        assert_same_bits(one, two)


@sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("small", [0, 2**62])
def test_a_model_says_what_it_says_to_a_listener(path, small, dtype, many, monkeypatch):
    """By law: the same bits, again and again, on one core and on all; a prompt goes another way."""
    monkeypatch.setattr(kernel, "SMALL", small)
    model = load(path, backend="cpu", dtype=dtype)
    truth = heard(model)
    assert not many
    assert_alike(steps(model), truth)
    assert_alike(steps(model), truth)
    assert many == [0, 3, 3, 3, 3, 3] * 2


def test_a_cache_that_grows_and_one_that_branches(qwen3, many):
    """By law: keys and values are written where a cache holds them now, and nowhere else."""
    model = load(qwen3, backend="cpu")
    first = [token % 90 for token in range(253)]
    truth, other = (heard(model, first=first, tokens=some) for some in (range(6), (0, 9, 8)))
    cache = model.make_cache()
    begun = steps(model, cache=cache, first=first, tokens=[0])
    branch = cache.branch()
    rest = [model.forward([[token]], cache=cache) for token in range(1, 6)]
    apart = [model.forward([[token]], cache=branch) for token in (9, 8)]
    assert_alike([*begun, *rest], truth)
    assert_alike([*begun, *apart], other)
    assert many == [0] + [3] * 8


def test_tokens_that_are_taken_back(qwen3):
    """By law: what comes in their place is what would have come there at first."""
    model = load(qwen3, backend="cpu")
    cache = model.make_cache()
    steps(model, cache=cache, tokens=(5, 6, 7))
    cache.trim(2)
    found = model.forward([[8]], cache=cache)
    assert_same_bits(found, heard(model, tokens=(5, 8))[2])


def test_the_first_token_of_a_text(qwen3, many):
    """By law: it is alone too, and sees itself."""
    model = load(qwen3, backend="cpu")
    assert_alike(steps(model, first=(3,)), heard(model, first=(3,)))
    assert many == [3] * 6


@pytest.mark.parametrize("kind", ["preallocated", "rotating", "int8", "affine8"])
def test_other_caches(qwen3, kind, many):
    """By law: those that hold plain numbers side by side serve as well, all others as before."""
    model = load(qwen3, backend="cpu")
    given = {"preallocated": {"room": 32}, "rotating": {"size": 5, "keep": 1}}.get(kind, {})
    found, truth = (run(model, cache=model.make_cache(kind, **given)) for run in (steps, heard))
    assert_alike(found, truth)
    assert (many[-1] == 3) == (kind == "preallocated")


def test_a_window_that_hides_tokens(tmp_path, many):
    """By law: as long as all are seen; from then on by operations."""
    changes = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    model = load(written(tmp_path, "qwen3", **changes), backend="cpu")
    assert_alike(steps(model), heard(model))
    assert many == [0, 3, 3, 3, 0, 0]


def test_several_rows_go_another_way(qwen3, many):
    model = load(qwen3, backend="cpu")
    model.forward([[1], [2]])
    assert many == [0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_that_has_no_digits(qwen3, dtype, many, monkeypatch):
    """By law: its layer and all behind are done by operations, as are later tokens' for now."""
    monkeypatch.setattr(layers, "ASIDE", 2)
    model = load(qwen3, backend="cpu", dtype=dtype)
    name = "model.layers.1.post_attention_layernorm.weight"
    gain = model.weights[name].copy()
    gain[5] = 1e30  # what is beside it in its span is lost in three digits
    monkeypatch.setitem(model.weights, name, gain)
    assert_alike(steps(model), heard(model))
    assert many == [0] + [UNTIL_LOST] * 5
    monkeypatch.undo()
    found = model.layers.layers[1].steps
    assert found.lost.any() == possible(8 * 2) and not model.layers.layers[0].steps.lost.any()


def test_codes_that_numpy_would_have_to_sort_for(tmp_path, many, monkeypatch):
    """By law: 4 bits go by operations where a processor does not read 64 of them at a time."""
    monkeypatch.setattr(few, "possible", lambda zero: False)
    model = load(written(tmp_path, "qwen3", 4), backend="cpu")
    assert_alike(steps(model), heard(model))
    assert many == [0] * 6


def test_a_layer_without_a_kernel(qwen3, many, monkeypatch):
    """By law: those before it are done in one go, and it and all behind it by operations."""
    model = load(qwen3, backend="cpu")
    name = "model.layers.2.mlp.down_proj.weight"
    unpacked = model.ops.dequantize(
        model.weights[name], rows=slice(None), dtype=np.dtype(np.float32)
    )
    monkeypatch.setitem(model.weights, name, unpacked)
    assert_alike(steps(model), heard(model))
    assert many == [0, 2, 2, 2, 2, 2]


def test_other_weights_settings_and_operations_are_used(qwen3, many, monkeypatch):
    """By law: what all is bound to is looked at for every token."""
    model = load(qwen3, backend="cpu")
    kept = steps(model)
    for name in ("input_layernorm", "self_attn.q_norm", "self_attn.o_proj", "mlp.gate_proj"):
        with monkeypatch.context() as other:
            whole = f"model.layers.1.{name}.weight"
            lent = model.weights[whole.replace("layers.1", "layers.2")]
            other.setitem(model.weights, whole, lent)
            found = steps(model)
            assert_alike(found, heard(model))
            assert not np.array_equal(found[5], kept[5])
    with monkeypatch.context() as other:
        changed = SimpleNamespace(**vars(model.config) | {"rms_norm_eps": 0.5})
        other.setattr(model, "config", changed)
        found = steps(model)
        assert_alike(found, heard(model))
        assert not np.array_equal(found[5], kept[5])
    right = {name: getattr(model.ops, name) for name in model.ops.__all__}
    many.clear()
    with monkeypatch.context() as other:
        other.setattr(model, "ops", SimpleNamespace(**right | {"add": lambda x, y: x}))
        assert not np.array_equal(steps(model)[5], kept[5]) and not many
    assert_alike(steps(model), kept)


def test_two_threads_share_no_arrays(qwen3, many):
    """By law: who comes while another one is at it goes by operations."""
    model = load(qwen3, backend="cpu")
    truth = heard(model)
    with model.layers.busy:
        assert_alike(steps(model), truth)
    assert many == [0] * 6 and not model.layers.layers


def test_what_was_given_out_stays_as_it_is(qwen3):
    """By law: streams and logits of a token are nobody's room for the next."""
    model = load(qwen3, backend="cpu")
    cache = model.make_cache()
    model.forward([[3, 1]], cache=cache)
    found = [*model.stages([[4]], cache=cache)]
    before = [value.copy() for _, value in found]
    steps(model)
    assert [name for name, _ in found][1:4] == [f"model.layers.{layer}" for layer in range(3)]
    assert_alike([value for _, value in found], before)


def test_nothing_is_held_of_a_cache_that_is_gone(qwen3):
    """By law: what is bound to its room goes with it."""
    model = load(qwen3, backend="cpu")
    steps(model)
    gc.collect()
    assert not model.layers.caches


def test_buffers_that_grow_are_let_go_one_by_one(qwen3, monkeypatch):
    """By law: as the last layer's is made, none of the layers before it holds its old one."""
    model = load(qwen3, backend="cpu")
    cache = model.make_cache()
    steps(model, cache=cache, first=[1] * 254, tokens=[2, 3])
    old = [ref(store.buffer) for store in (*cache.keys, *cache.values)]
    alive, right = [], Growing.own_for

    def counted(self, *given):
        alive.append(sum(one() is not None for one in old))
        return right(self, *given)

    monkeypatch.setattr(Growing, "own_for", counted)
    model.forward([[4]], cache=cache)
    assert alive == [6, 5, 4, 3, 2, 1]


def test_an_adapters_model_is_bound_to_nothing_of_the_others(qwen3):
    model = load(qwen3, backend="cpu")
    steps(model)
    assert model.with_adapter(None).layers is not model.layers
