"""Matrices of one input in one: what is joined, what not, and that nobody can tell."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.fast import joined as joining
from lockstep.fast import kernels
from lockstep.fast.joined import join_all, rooms_for
from lockstep.fast.model import load
from lockstep.parity.noise.random_checkpoint import write_checkpoint
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.draws import normal, packed_matrix
from tests.every_architecture import write
from tests.ops_backends import DTYPES
from tests.parity.builders import CONFIG
from tests.tolerances import assert_same_bits

TIED = Path(__file__).parents[1] / "witnesses/gguf/qwen3_tied.gguf"
ATTENTION = "model.layers.0.self_attn"
QKV = tuple(f"{ATTENTION}.{one}_proj" for one in "qkv")
TOKENS = [[3, 1, 4, 1, 5]]
SCALES = DTYPES["bfloat16"]


def named(*matrices):
    return {f"{path}.weight": one for path, one in zip(QKV, matrices, strict=True)}


def matrix(form: str, rows: int) -> Any:
    if form == "MLX":
        return packed_matrix(rows, rows, 64, bits=4, group=32, dtype=SCALES)[0]
    if form == "Q8_0":
        return BlockTensor(np.full((rows, 68), rows, np.uint8), "Q8_0")
    return normal(rows, rows, 64, dtype=np.dtype(form))


@pytest.mark.parametrize("form", ["float32", "float16", "MLX", "Q8_0"])
def test_rows_lie_one_after_another_and_parts_are_views(form):
    """By hand: nothing is held twice."""
    weights = named(*(matrix(form, rows) for rows in (4, 2, 3)))
    before = dict(weights)
    [(paths, joined)] = join_all(weights, lambda weight: True).items()
    assert paths == QKV and joined.weight.shape == (9, 64) and joined.bias is None
    assert joined.columns == (slice(0, 4), slice(4, 6), slice(6, 9))
    for name, columns in zip(before, joined.columns, strict=True):
        assert weights[name].shape == (columns.stop - columns.start, 64)
        tensors = (weights[name], before[name], joined.weight)
        for part, old, whole in zip(*map(arrays, tensors), strict=True):
            assert np.shares_memory(part, whole)
            np.testing.assert_array_equal(part, old)


def arrays(tensor):
    if isinstance(tensor, np.ndarray):
        return [tensor]
    return [one for one in vars(tensor).values() if isinstance(one, np.ndarray)]


@pytest.mark.parametrize("why", ["bits", "group", "format", "dtype", "width", "none", "stack"])
def test_what_is_stored_otherwise_stays_apart(why):
    """By hand."""
    one = matrix("MLX", 4)
    other = {
        "bits": packed_matrix(0, 4, 64, bits=8, group=32, dtype=SCALES)[0],
        "group": packed_matrix(0, 4, 64, bits=4, group=64, dtype=SCALES)[0],
        "format": matrix("Q8_0", 4),
        "dtype": replace(one, scales=one.scales.astype(np.float16)),
        "width": packed_matrix(0, 4, 128, bits=4, group=32, dtype=SCALES)[0],
        "none": None,
        "stack": normal(0, 2, 4, 64),
    }[why]
    first = other if why == "stack" else one
    weights = named(first, first, other)
    before = dict(weights)
    assert join_all(weights, lambda weight: True) == {}
    assert all(weights[name] is before[name] for name in before)


@pytest.mark.parametrize("biases", [0, 1, 3])
def test_biases_are_joined_if_all_have_one(biases):
    """By hand."""
    weights = named(*(matrix("float32", rows) for rows in (4, 2, 3)))
    weights |= {f"{path}.bias": np.ones(len(weights[f"{path}.weight"])) for path in QKV[:biases]}
    found = list(join_all(weights, lambda weight: True).values())
    assert len(found) == (0 if biases == 1 else 1)
    assert [one.bias is None or len(one.bias) for one in found] == {0: [True], 1: [], 3: [9]}[
        biases
    ]


@pytest.fixture(scope="module", params=[None, 4], ids=["floats", "4 bits"])
def model(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, CONFIG, seed=1, stored="bfloat16", bits=request.param)
    return load(folder, backend="cpu")


def run(model):
    """Return the logits, and every tap by its name."""
    taps = {}
    logits = model.forward(TOKENS, trace=lambda name, value: taps.update({name: value.copy()}))
    return logits, taps


def test_a_model_with_joined_matrices_says_what_it_says_without(model, monkeypatch):
    """By law: the same bits in every tap, traced or not, since each row is a product of its own."""
    assert len(model.joined) == 2 * CONFIG["num_hidden_layers"]
    logits, taps = run(model)
    assert_same_bits(model.forward(TOKENS), logits)
    monkeypatch.setattr(model, "joined", {})
    apart, others = run(model)
    assert_same_bits(apart, logits)
    assert list(others) == list(taps)
    for name, value in taps.items():
        assert_same_bits(np.ascontiguousarray(others[name]), np.ascontiguousarray(value))


def test_one_product_serves_all_three(model, monkeypatch):
    """By hand: QKV, the output, gate and up, down; the head comes last."""
    seen = []
    linear = model.ops.linear

    def counted(x, weight, bias):
        seen.append(weight.shape[0])
        return linear(x, weight, bias)

    monkeypatch.setattr(model.ops, "linear", counted)
    model.forward(TOKENS)
    assert seen == [128, 32, 128, 32] * CONFIG["num_hidden_layers"] + [CONFIG["vocab_size"]]


def test_a_weight_that_was_replaced_is_used(model):
    """By law: a model whose keys are others has other keys, and the same queries."""
    name = f"{QKV[1]}.weight"
    other, kept = model.with_adapter(None), run(model)[1]
    other.weights = model.base | {name: np.zeros(model.base[name].shape, np.float32)}
    taps = run(other)[1]
    bias = model.base[f"{QKV[1]}.bias"]
    assert_same_bits(np.ascontiguousarray(taps[QKV[0]]), np.ascontiguousarray(kept[QKV[0]]))
    np.testing.assert_array_equal(taps[QKV[1]], np.broadcast_to(bias, taps[QKV[1]].shape))


def test_mlx_has_its_matrices_apart():
    """By hand: nothing is joined there."""
    backend = import_module("lockstep.fast.backends.mlx").MlxBackend("float32", None)
    assert backend.joined(named(*(matrix("float32", 4) for _ in QKV))) == {}


def test_what_blas_multiplies_stays_apart(tmp_path, monkeypatch):
    """By law: BLAS may round a row otherwise beside others; so float32, and all without Numba."""
    write_checkpoint(tmp_path / "wide", CONFIG, seed=1, stored="float32", bits=None)
    assert load(tmp_path / "wide", backend="cpu").joined == {}
    write_checkpoint(tmp_path / "packed", CONFIG, seed=1, stored="bfloat16", bits=4)
    assert load(tmp_path / "packed", backend="cpu").joined != {}
    monkeypatch.setattr(kernels, "available", lambda: False)
    assert load(tmp_path / "packed", backend="cpu").joined == {}


def test_it_serves_only_what_it_holds():
    """By hand: not where a part was replaced, nor where a module of it is adapted."""
    weights = named(*(matrix("MLX", rows) for rows in (4, 2, 3)))
    [joined] = join_all(weights, lambda weight: True).values()
    adapter = object()
    assert joined.serves(weights, {}) and joined.serves(weights, {"lm_head": adapter})
    assert not joined.serves(weights, {"lm_head": adapter, QKV[1]: adapter})
    assert not joined.serves(weights | {f"{QKV[2]}.weight": matrix("MLX", 3)}, {})
    assert not joined.serves(weights | {f"{QKV[0]}.bias": normal(0, 4)}, {})


def written(folder, form):
    """Write a model, packed or dense, or as a GGUF file; return what is opened."""
    if form == "GGUF":
        return TIED
    bits = 4 if form == "packed" else None
    write_checkpoint(folder, CONFIG, seed=1, stored="bfloat16", bits=bits)
    return folder


@pytest.mark.parametrize("form", ["packed", "dense", "GGUF"])
def test_what_is_read_below_each_other_is_joined_without_a_copy(form, tmp_path, monkeypatch):
    """By law: the tensors are those that are read by themselves."""
    checkpoint = open_checkpoint(written(tmp_path, form))
    rooms = rooms_for(checkpoint)
    weights = {name: checkpoint.tensor(name, rooms) for name in checkpoint.names}
    for name, weight in weights.items():
        for one, other in zip(arrays(weight), arrays(checkpoint.tensor(name)), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    monkeypatch.setattr(joining.np, "concatenate", None)
    matrices = {name: one for name, one in weights.items() if not name.endswith(".bias")}
    found = join_all(matrices, lambda weight: True)
    assert len(found) == 2 * checkpoint.config.num_hidden_layers
    for paths, joined in found.items():
        last = arrays(weights[f"{paths[-1]}.weight"])
        assert all(map(np.shares_memory, last, arrays(joined.weight)))


def test_a_copy_is_made_where_arrays_do_not_lie_so():
    """By hand: in another order, of other memory, or beside more."""
    room = np.arange(24, dtype=np.uint8)
    rows = [room[:8].reshape(2, 4), room[8:].reshape(4, 4)]
    assert np.shares_memory(joining.below(rows), room)
    for apart in (rows[::-1], [rows[0], rows[1].copy()], rows[:1], [rows[0], rows[1][:, ::-1]]):
        made = joining.below(apart)
        assert not np.shares_memory(made, room)
        np.testing.assert_array_equal(made, np.concatenate(apart))


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma4 experts"])
def test_stacks_have_no_room(name, tmp_path):
    """By law: those of experts may be larger than memory, and are read as they are visited."""
    rooms = rooms_for(open_checkpoint(write(tmp_path / "model", name)))
    assert rooms and not any("switch" in one for one in rooms)
