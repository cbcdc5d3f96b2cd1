"""The reference and a backend in lock step: who is blamed, and who is not."""

import tracemalloc
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.parity.check import check, with_heritage
from lockstep.parity.judging.result import Tap
from lockstep.parity.noise.random_checkpoint import weight_shapes
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.parity import builders
from tests.parity.builders import CONFIG, TOKENS
from tests.sampled import sampled

WEIGHTS = "model.safetensors"

BACKENDS = ["cpu", "mlx"]
NAMES = sorted(weight_shapes(CONFIG))
PACKED = [name for name, shape in weight_shapes(CONFIG).items() if len(shape) == 2]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("packed"), bits=4)


def diverged(result):
    return [tap.name for tap in result.taps if tap.status == "diverged"]


def taps_of_weight(name):
    module = name.rpartition(".")[0]
    return ["lm_head", "logits"] if module == "lm_head" else [module]


def host(array):
    return np.array(array)


def perturb(port, name, factor=1.01):
    """Multiply one weight, the largest of those that the prompt uses, by a factor."""
    weight = host(port.weights[name])
    used = weight[TOKENS[0, 0]] if name == "model.embed_tokens.weight" else weight.reshape(-1)
    used[np.argmax(np.abs(used))] *= factor
    port.weights[name] = port.backend.weight(weight)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_port_is_at_parity(dense, backend, dtype):
    result = check(*builders.pair(dense, backend, dtype), np.repeat(TOKENS, 2, axis=0), decode=2)
    assert diverged(result) == []
    assert {tap.status for tap in result.taps} == {"ok"}
    assert {name.rpartition(".")[2] for name in result.unmatched} == {"scores", "probs", "act_fn"}
    assert sum(tap.name.startswith("step.2/") for tap in result.taps) == len(result.taps) / 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_far_positions_are_at_parity(dense, backend):
    positions = np.arange(8)[None] + 5000
    result = check(*builders.pair(dense, backend), TOKENS, positions=positions, decode=1)
    assert diverged(result) == []


@sampled(13, "model.layers.0.self_attn.q_proj.weight-cpu")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_one_weight_off_by_a_hundredth_is_found_where_it_is(dense, backend, name):
    reference, port = builders.pair(dense, backend)
    perturb(port, name)
    result = check(reference, port, TOKENS)
    assert diverged(result) == taps_of_weight(name)


@sampled(6, "model.layers.1.self_attn.o_proj.weight-cpu")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PACKED)
def test_one_wrong_code_is_found_where_it_is(packed, backend, name):
    reference, port = builders.pair(packed, backend)
    weight = port.weights[name]
    assert isinstance(weight, QuantizedTensor)
    words = host(weight.packed)
    words[TOKENS[0, 0] if "embed" in name else 0, 0] ^= 8
    as_held = words if backend == "cpu" else type(weight.packed)(words)
    port.weights[name] = replace(weight, packed=as_held)
    assert diverged(check(reference, port, TOKENS)) == taps_of_weight(name)


def test_a_tied_table_is_found_at_both_of_its_uses(tmp_path):
    reference, port = builders.pair(builders.checkpoint(tmp_path, tie_word_embeddings=True))
    perturb(port, "model.embed_tokens.weight")
    found = diverged(check(reference, port, TOKENS))
    assert found == ["model.embed_tokens", "lm_head", "logits"]


def test_two_faults_are_both_found_and_what_lies_between_inherits(tmp_path):
    reference, port = builders.pair(builders.checkpoint(tmp_path, num_hidden_layers=4))
    faults = ["model.layers.0.self_attn.v_proj", "model.layers.2.mlp.down_proj"]
    for name in faults:
        perturb(port, f"{name}.weight", factor=2)
    result = check(reference, port, TOKENS)
    assert diverged(result) == faults
    assert result.first_divergence.name == faults[0]
    status = {tap.name: tap.status for tap in result.taps}
    names = list(status)
    assert {status[name] for name in names[: names.index(faults[0])]} == {"ok"}
    between = [name for name in names if name.startswith(("model.layers.1", "model.layers.3"))]
    assert {status[name] for name in between} == {"inherited"}


@pytest.mark.parametrize("kind", ["key", "value"])
def test_a_spoiled_cache_is_found_at_the_step_that_reads_it(dense, kind):
    reference, port = builders.pair(dense)
    cache = port.make_cache()
    port.make_cache = lambda: cache

    def spoil(done):
        if done == "logits":
            store = getattr(cache, f"{kind}s")[1]
            store.buffer = store.buffer * np.float32(1.01)

    result = check(reference, port, TOKENS, decode=1, progress=spoil)
    assert diverged(result) == [f"step.1/model.layers.1.self_attn.cached_{kind}s"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_diverges(dense, bad):
    reference, port = builders.pair(dense)
    weight = port.weights["model.layers.1.mlp.up_proj.weight"].copy()
    weight[3, 4] = bad
    port.weights["model.layers.1.mlp.up_proj.weight"] = weight
    result = check(reference, port, TOKENS)
    assert result.first_divergence.name == "model.layers.1.mlp.up_proj"


def test_an_operation_that_gives_another_shape_diverges(dense):
    reference, port = builders.pair(dense)
    embedding, names = port.ops.embedding, port.ops.__all__
    port.ops = SimpleNamespace(**{name: getattr(port.ops, name) for name in names})
    port.ops.embedding = lambda *given, dtype: np.repeat(embedding(*given, dtype=dtype), 2, axis=0)
    first = check(reference, port, TOKENS).first_divergence
    assert first.name == "model.embed_tokens"
    assert first.place == "shape [2, 8, 32], but should be [1, 8, 32]"


def test_nothing_compared_is_an_error(dense):
    reference, port = builders.pair(dense)
    stages = port.stages
    port.stages = lambda tokens, *, trace, **rest: stages(tokens, trace=None, **rest)
    with pytest.raises(InputError, match="nothing was compared"):
        check(reference, port, TOKENS)
    with pytest.raises(InputError, match="nothing was compared"):
        check(*builders.pair(dense), np.zeros((1, 0), int))


def test_a_model_of_zeros_shows_nothing(tmp_path):
    path = builders.checkpoint(tmp_path)
    tensors = {name: np.zeros_like(value) for name, value in load_file(path / WEIGHTS).items()}
    save_file(tensors, path / WEIGHTS)
    with pytest.raises(InputError, match="nothing was compared: all taps are zero on both sides"):
        check(*builders.pair(path), TOKENS)


def test_progress_names_every_stage_of_every_step(dense):
    said = []
    check(*builders.pair(dense), TOKENS, decode=1, progress=said.append)
    stages = ["model.embed_tokens", "model.layers.0", "model.layers.1", "logits"]
    assert said == [*stages, *(f"step.1/{stage}" for stage in stages)]


def test_two_runs_say_the_same(dense):
    first, second = (check(*builders.pair(dense), TOKENS, decode=1).to_json() for _ in range(2))
    assert first == second


@sampled(0)
def test_memory_does_not_grow_with_layers_beyond_the_cache(tmp_path):
    few, many = (peak_memory(tmp_path / str(layers), layers) for layers in (2, 10))
    tensor = 64 * 16 * 4  # one layer's keys or values of the prompt in float32, one key head
    # Held for decoding: by the reference, the port (room for 256 tokens), the centre (float64), and
    # the ways, which share them. And 17 records of what was found.
    cached = 2 * (1 + 4 + 2 + 1) * tensor + 17 * 1600
    assert (many - few) / 8 < cached
    assert few > 50 * cached


def peak_memory(folder, layers):
    shape = {"num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1}
    models = builders.pair(builders.checkpoint(folder, intermediate_size=512, **shape))
    tokens = np.arange(64)[None] % 40
    check(*models, tokens)
    tracemalloc.start()
    try:
        check(*models, tokens)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_heritage_begins_after_the_first_divergence():
    def tap(status, inherited):
        return Tap("x", "add", (1,), status, inherited_error=inherited, noise=1e-7)

    wrong, far, near = tap("diverged", 0.0), tap("ok", 1e-3), tap("ok", 1e-7)
    marked = [tap.status for tap in with_heritage([far, wrong, far, near], None)]
    assert marked == ["ok", "diverged", "inherited", "ok"]
    assert [tap.status for tap in with_heritage([far, near], wrong)] == ["inherited", "ok"]
    assert [tap.status for tap in with_heritage([tap("ok", np.nan)], wrong)] == ["inherited"]


def test_a_port_that_ends_early_is_an_error(dense):
    """By law: what was not compared is no parity."""
    reference, port = builders.pair(dense)
    whole = port.stages
    port.stages = lambda *tokens, **options: islice(whole(*tokens, **options), 1)
    with pytest.raises(InputError, match=r"its stages end before model\.layers\.0"):
        check(reference, port, TOKENS)
