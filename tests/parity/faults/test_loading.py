"""Tensors loaded wrongly: by name, by index, by loop, and on small models."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explain import explain
from lockstep.parity.faults.fused_heads import (
    as_blocks,
    by_groups,
    cut,
    cut_in_order,
    put_together,
)
from lockstep.parity.faults.loading import (
    FAULTS,
    exchanged_by,
    sorted_as_text,
    stored_round,
    turned_round,
)
from lockstep.parity.faults.packing import affine
from lockstep.parity.graph import Call, Derived, Graph, Tensor, Value
from lockstep.reference import ops
from tests.parity.builders import checkpoint
from tests.parity.explaining.ports import dumped
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "gpt2/variant", "gemma4/effective", "models/biased_float16", "gguf/qwen3_mixed.gguf",
    "models/untied_float32", "qwen3_moe/packed", "adapters/peft_patterns", "adapters/mlx_lora",
)  # fmt: skip
HIDDEN = {
    "tied-head-mishandled[the head that the file has, though the config ties it]": (
        "no witness stores a head that it ties"
    ),
    "layers-swapped[sorted as text]": "no model here has more than ten layers",
    **{
        f"layers-swapped[layer i has i {by}, with its adapter]": "the adapters' models have two"
        for by in ("+ 2", "- 2", "+ 3", "- 3")
    },
    f"layers-swapped[{exchanged_by(2, 2)}]": "no model here has more than four layers",
    **{
        f"layers-swapped[{exchanged_by(by, first)}, with its adapter]": (
            "the adapters' models have two"
        )
        for by, first in ((1, 1), (2, 0), (2, 2))
    },
}


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_a_transpose_is_one_packed_or_not():
    weight = np.random.default_rng(2).standard_normal((32, 32)).astype(np.float32)
    np.testing.assert_array_equal(turned_round(ops, weight), weight.T)
    packed = affine(weight, bits=8, group_size=32)
    np.testing.assert_allclose(turned_round(ops, packed), weight.T, atol=0.02)


def test_what_lies_transposed_read_as_rows_by_index():
    """A file has (inputs, outputs) = (2, 3): 0 1 2 | 3 4 5. Read as (3, 2): 0 1 | 2 3 | 4 5."""
    file = np.arange(6.0).reshape(2, 3)
    assert stored_round(ops, file.T).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_only_square_matrices_are_turned_round():
    here = world("qwen3_moe/packed")
    for one in here.calls(variant("weight-square-transposed")).values():
        rows, columns = here.graph.stored[one.tensor(1 if one.op == "linear" else 2)].shape[-2:]
        assert rows == columns


def stack_of(layers: int) -> Graph:
    stored = {f"model.layers.{n}.mlp.up_proj.weight": SimpleNamespace(shape=(4, 4))
              for n in range(layers)}  # fmt: skip
    return Graph((), (), (), SimpleNamespace(num_hidden_layers=layers), stored)  # pyright: ignore[reportArgumentType]


def layers_read(name: str, layers: int) -> list[int]:
    graph, rewrite, found = stack_of(layers), variant("layers-swapped", name), []
    for layer in range(layers):
        ref = Tensor(f"model.layers.{layer}.mlp.up_proj.weight")
        one = Call(0, "linear", (Tensor("x"), ref), {}, (), "mlp.up_proj", layer)
        changed = rewrite(one, graph)
        found.append(int((changed or one).tensor(1).split(".")[2]))
    return found


@pytest.mark.parametrize(
    ("name", "layers", "expected"),
    [
        ("layer i has i + 1", 4, [1, 2, 3, 3]),
        ("layer i has i - 1", 4, [0, 0, 1, 2]),
        ("layer i has i + 3", 4, [3, 1, 2, 3]),
        (exchanged_by(1, 0), 5, [1, 0, 3, 2, 4]),
        (exchanged_by(1, 1), 5, [0, 2, 1, 4, 3]),
        (exchanged_by(2, 0), 6, [2, 3, 0, 1, 4, 5]),
        (exchanged_by(2, 2), 5, [0, 1, 4, 3, 2]),
        ("counted from the end", 4, [3, 2, 1, 0]),
        ("sorted as text", 12, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("sorted as text", 10, [*range(10)]),
    ],
)
def test_layers_by_hand(name, layers, expected):
    assert layers_read(name, layers) == expected


def test_text_orders_ten_before_two():
    assert [sorted_as_text(layer, 11) for layer in range(4)] == [0, 1, 10, 2]


def test_layers_of_another_shape_are_not_exchanged():
    """By law: a tensor that would not fit is left, so that nothing crashes."""
    here = world("gemma4/dense")
    for one in here.calls(variant("layers-swapped", "layer i has i + 1")).values():
        right = here.graph.calls[one.number]
        for index in range(len(one.inputs)):
            if right.tensor(index) is not None:
                shapes = {here.graph.stored[name.tensor(index)].shape for name in (one, right)}
                assert len(shapes) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("head by head", [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]),
        ("number by number", [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        ("values, queries, keys", [[4, 5, 6, 7], [8, 9, 10, 11], [0, 1, 2, 3]]),
        ("keys, values, queries", [[8, 9, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7]]),
        ("keys, queries, values", [[4, 5, 6, 7], [0, 1, 2, 3], [8, 9, 10, 11]]),
        ("values, keys, queries", [[8, 9, 10, 11], [4, 5, 6, 7], [0, 1, 2, 3]]),
        ("queries, values, keys", [[0, 1, 2, 3], [8, 9, 10, 11], [4, 5, 6, 7]]),
    ],
)
def test_fused_columns_by_index(name, expected):
    """Two heads of two: columns 0..3 are queries, 4..7 keys, 8..11 values."""
    fused = np.arange(12.0)[None, None]
    for block, columns in enumerate(expected):
        graph = graph_of(
            call(0, "scale", fused, by=1.0),
            call(1, "column_block", Value(0), place="attn.scores", block=block, blocks=3),
            num_attention_heads=2,
        )
        assert wrong(graph, variant("fused-qkv-layout", name))[0, 0].tolist() == columns


def by_loop(name: str) -> dict[str, list[str]]:
    """What each projection gets of 4 query and 2 key heads, a row each, by the way's words."""
    q, k, v = ["q0", "q1", "q2", "q3"], ["k0", "k1"], ["v0", "v1"]
    if name == "queries, values, keys":
        fused, places = q + v + k, [*range(8)]
    elif name == "values, queries, keys":  # what is taken for them, a third each: k, v and q
        fused, places = k + v + q, [*range(8)]
    elif name == "values, queries, keys, cut as these":
        fused, places = q + k + v, [2, 3, 4, 5, 6, 7, 0, 1]
    elif name == "group by group, cut as all":
        fused, places = ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"], [*range(8)]
    else:
        fused, places = q + k + v, [0, 1, 4, 5, 2, 6, 3, 7]
    got = [fused[place] for place in places]
    return {"q_proj": got[:4], "k_proj": got[4:6], "v_proj": got[6:]}


FUSED = {
    "queries, values, keys": put_together(0, 2, 1),
    "values, queries, keys": put_together(1, 2, 0),
    "values, queries, keys, cut as these": cut_in_order(2, 0, 1),
    "group by group, cut as all": as_blocks,
    "all, cut group by group": by_groups,
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_heads_by_loop(name):
    """A head is a row, its bias its number; the file has the three apart, the port together."""
    order = FUSED[name]
    rows = np.array(["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"])
    parts = cut(order(rows, 4, 2), 4, 2)
    assert [one.tolist() for one in parts] == [*by_loop(name).values()]


def test_fused_heads_take_matrices_and_biases_along():
    """By law: of a small model, the keys get all of the values' rows, and their biases."""
    here = world("models/biased_float16")
    calls = here.calls(variant("fused-qkv-layout", "queries, values, keys"))
    keys = next(one for one in calls.values() if one.place.endswith("k_proj"))
    names = [f"model.layers.{keys.layer}.self_attn.{part}_proj" for part in "qkv"]
    for index, end in ((1, "weight"), (2, "bias")):
        stored = [here.graph.stored[f"{name}.{end}"].shape[0] for name in names]
        parts = [np.full((rows, 1), part) for rows, part in zip(stored, "qkv", strict=True)]
        ref = keys.inputs[index]
        assert isinstance(ref, Derived)
        assert ref.change(SimpleNamespace(), *(one == "v" for one in parts)).all()


def test_gate_and_up_change_places():
    here = world("qwen3_moe/packed")
    for one in here.calls(variant("fused-gate-up-order")).values():
        right = here.graph.calls[one.number]
        for index in range(1, len(one.inputs)):
            name = right.tensor(index)
            if name is not None and ("gate_proj" in name or "up_proj" in name):
                swapped = name.replace("gate_proj", "?").replace("up_proj", "gate_proj")
                assert one.tensor(index) == swapped.replace("?", "up_proj")


def test_a_head_of_its_own_or_the_embedding():
    rewrite = variant("tied-head-mishandled", "the embedding")
    changed = world("models/untied_float32").calls(rewrite)
    assert [one.tensor(1) for one in changed.values()] == ["model.embed_tokens.weight"]
    assert not world("gemma4/effective").calls(rewrite)


@pytest.mark.parametrize("level", ["modules", "logits"])
def test_a_head_that_is_stored_though_it_is_tied(level, tmp_path):
    """By hand: one file under two configs. transformers runs its head under both."""
    own = checkpoint(tmp_path / "own")
    tied = shutil.copytree(own, tmp_path / "tied")
    config = json.loads((own / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tied / "config.json").write_text(json.dumps(config))
    taps, ids = {}, [*range(24)]
    logits = reference.load(own).forward([ids], trace=taps.__setitem__)
    taps = taps if level == "modules" else {"logits": np.asarray(logits)}
    (bug,) = explain(reference.load(tied), dumped(taps), tokens=ids).faults
    what = "the head that the file has, though the config ties it"
    assert (bug.id, bug.variant) == ("tied-head-mishandled", what)
    assert explain(reference.load(own), dumped(taps), tokens=ids).verdict == "clean"


@pytest.mark.parametrize(
    ("name", "expected"), [("one row on", [11, 12, 10]), ("one row back", [12, 10, 11])]
)
def test_a_head_that_is_the_embedding_with_its_rows_elsewhere(name, expected):
    """By hand: the logit of token t is that of row t + 1, or t - 1, of the embedding."""
    rewrite = variant("tied-head-mishandled", f"the embedding, which is {name}")
    (changed,) = world("models/untied_float32").calls(rewrite).values()
    assert changed.tensor(1) == "model.embed_tokens.weight"
    (shift,) = changed.after
    assert shift(ops, np.array([[[10, 11, 12]]])).tolist() == [[expected]]
    assert not world("gemma4/effective").calls(rewrite)
