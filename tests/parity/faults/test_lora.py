"""Adapters gone wrong: by formula on small matrices, and on the adapters of the witnesses."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.faults.adapter_layers import COUNTED_OTHERWISE, from_the_first
from lockstep.parity.faults.loading import exchanged_by
from lockstep.parity.faults.lora import FAULTS, the_other_way
from lockstep.parity.graph import Call, Constant, Graph, Tensor, Value
from lockstep.reference import ops
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "adapters/peft_patterns", "adapters/peft_dora", "adapters/mlx_lora", "adapters/mlx_trained",
    "adapters/peft_packed", "adapters/peft_saved",
)  # fmt: skip
RNG = np.random.default_rng(23)
WIDTH, OUTPUTS, RANK, SCALE = 6, 5, 2, 3.0
X = RNG.standard_normal((1, 4, WIDTH))
W, BIAS = RNG.standard_normal((OUTPUTS, WIDTH)), RNG.standard_normal(OUTPUTS)
A, B = RNG.standard_normal((RANK, WIDTH)), RNG.standard_normal((OUTPUTS, RANK))
MAGNITUDE = RNG.standard_normal(OUTPUTS) ** 2 + 1


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def test_models_without_adapters_have_none_of_it():
    for fault in FAULTS:
        for rewrite in fault.variants.values():
            assert not world("models/affine_4_64").calls(rewrite), fault.id


def adapted() -> Graph:
    return graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), W, BIAS, place="mlp.up_proj", layer=0),
        call(2, "add_lora", Value(1), Value(0), A, B, place="mlp.up_proj", layer=0, scale=SCALE),
    )


def lengthened() -> Graph:
    """The same with DoRA, where the bias comes last."""
    return graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), W, None, place="mlp.up_proj", layer=0),
        call(2, "add_lora", Value(1), Value(0), A, B, place="mlp.up_proj", layer=0, scale=SCALE),
        call(3, "dora_rescale", Value(2), W, BIAS, A, B, MAGNITUDE, place="mlp.up_proj", layer=0,
             scale=SCALE),
    )  # fmt: skip


def projected(scale: float, a: np.ndarray = A, b: np.ndarray = B) -> np.ndarray:
    return X @ (W + scale * b @ a).T + BIAS


@pytest.mark.parametrize(
    ("id", "name", "scale"),
    [
        ("lora-scale-divided-again", "", SCALE / RANK),
        ("lora-scale-missing", "", 1.0),
        ("lora-alpha-not-divided", "", SCALE * RANK),
        ("lora-rslora-ignored", "divided by r", SCALE / math.sqrt(RANK)),
        ("lora-rslora-ignored", "divided by the root of r", SCALE * math.sqrt(RANK)),
        ("lora-not-applied", "", 0.0),
        ("lora-applied-twice", "", 2 * SCALE),
        ("lora-subtracted", "", -SCALE),
    ],
)
def test_scales_by_formula(id, name, scale):
    np.testing.assert_allclose(wrong(adapted(), variant(id, name)), projected(scale), atol=1e-12)


def test_the_scale_of_lengths_is_wrong_too():
    """By formula: with DoRA the lengths are those of the wrongly adapted rows."""
    moved = W + SCALE / RANK * B @ A
    expected = X @ (moved * (MAGNITUDE / np.linalg.norm(moved, axis=1))[:, None]).T + BIAS
    found = wrong(lengthened(), variant("lora-scale-divided-again"))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("id", "scale"), [("dora-magnitude-missing", SCALE), ("lora-not-applied", 0.0)]
)
def test_missing_lengths_keep_the_bias(id, scale):
    np.testing.assert_allclose(wrong(lengthened(), variant(id)), projected(scale), atol=1e-12)


def test_factors_read_the_other_way_by_index():
    """(2, 3): 0 1 2 | 3 4 5 lies as it would for (3, 2): 0 1 | 2 3 | 4 5, transposed again."""
    assert the_other_way(ops, np.arange(6.0).reshape(2, 3)).tolist() == [[0, 2, 4], [1, 3, 5]]
    square = RNG.standard_normal((4, 4))
    np.testing.assert_array_equal(the_other_way(ops, square), square.T)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("both", A.reshape(WIDTH, RANK).T, B.reshape(RANK, OUTPUTS).T),
        ("A alone", A.reshape(WIDTH, RANK).T, B),
        ("B alone", A, B.reshape(RANK, OUTPUTS).T),
    ],
)
def test_transposed_factors_by_formula(name, a, b):
    found = wrong(adapted(), variant("lora-factors-transposed", name))
    np.testing.assert_allclose(found, projected(SCALE, a, b), atol=1e-12)


def stacked() -> Graph:
    """Three layers, of which the last two are adapted."""
    calls: list[Call] = [call(0, "scale", X, by=1.0)]
    for layer in range(3):
        place = {"place": "mlp.up_proj", "layer": layer}
        calls.append(call(len(calls), "linear", Value(0), W, BIAS, **place))
        if layer:
            made = (A * layer, B, {"scale": SCALE})
            calls.append(call(len(calls), "add_lora", Value(len(calls) - 1), Value(0), *made[:2],
                              **place, **made[2]))  # fmt: skip
    return graph_of(*calls, num_hidden_layers=3)


def assert_adapted(fault, name, factors):
    """Compare what each layer gives with what its adapter makes of it: n times A, or nothing."""
    graph, rewrite = stacked(), variant(fault, name)
    changed = {one.number: rewrite(one, graph) or one for one in graph.calls}
    for layer, factor in enumerate(factors):
        last = [one.number for one in graph.calls if one.layer == layer][-1]
        part = Graph(graph.calls[: last + 1], graph.shapes, graph.token_axes, graph.config)
        found = wrong(part, lambda one, graph: changed[one.number])
        np.testing.assert_allclose(found, projected(SCALE * (factor or 0)), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("one layer late", [None, None, 1]),
        ("one layer early", [1, 2, None]),
        ("on the first layers", [1, 2, None]),
        ("counted from the end", [2, 1, None]),
    ],
)
def test_layers_by_hand(name, factors):
    """Layer n is adapted by n times A: what each layer gives says whose adapter it has."""
    assert_adapted("lora-layer-offset", name, factors)


class Counted(np.ndarray):
    """An array that counts how often it is looked through for anything but noughts."""

    asked = 0

    def any(self, *words, **options):
        self.asked += 1
        return super().any(*words, **options)


def test_each_factor_is_read_through_once_however_many_layers_there_are():
    count, calls = 6, [call(0, "scale", X, by=1.0)]
    factors = [(A.copy().view(Counted), B.copy().view(Counted)) for _ in range(count)]
    for layer, made in enumerate(factors):
        place = {"place": "mlp.up_proj", "layer": layer}
        calls.append(call(len(calls), "linear", Value(0), W, BIAS, **place))
        calls.append(call(len(calls), "add_lora", Value(len(calls) - 1), Value(0), *made,
                          scale=SCALE, **place))  # fmt: skip
    graph = graph_of(*calls, num_hidden_layers=count)
    for a, b in factors:
        a.asked = b.asked = 0
    changed = [rule(one, graph) for rule in COUNTED_OTHERWISE.values() for one in graph.calls]
    assert any(changed)
    assert all(a.asked + b.asked <= 2 for a, b in factors)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("layer i has i + 1, with its adapter", [1, 2, 2]),
        ("layer i has i - 1, with its adapter", [None, None, 1]),
        (f"{exchanged_by(1, 1)}, with its adapter", [None, 2, 1]),
    ],
)
def test_adapters_move_with_their_layers(name, factors):
    """By hand, on the same layers; the outermost one stays."""
    assert_adapted("layers-swapped", name, factors)


def test_lengths_move_with_the_adapter():
    """By formula: three layers, of which the last two have DoRA, each with lengths of its own."""
    calls: list[Call] = [call(0, "scale", X, by=1.0)]
    for layer in range(3):
        place = {"place": "mlp.up_proj", "layer": layer}
        if not layer:
            calls.append(call(1, "linear", Value(0), W, BIAS, **place))
            continue
        calls.append(call(len(calls), "linear", Value(0), W, None, **place))
        made = (A * layer, B)
        calls.append(
            call(
                len(calls), "add_lora", Value(len(calls) - 1), Value(0), *made, scale=SCALE, **place
            )
        )
        calls.append(
            call(
                len(calls),
                "dora_rescale",
                Value(len(calls) - 1),
                W,
                BIAS,
                *made,
                MAGNITUDE * layer,
                scale=SCALE,
                **place,
            )
        )
    graph = graph_of(*calls, num_hidden_layers=3)
    rewrite = variant("layers-swapped", "layer i has i + 1, with its adapter")
    changed = {one.number: rewrite(one, graph) or one for one in calls}
    for last, adapter in ((1, 1), (4, 2), (7, 2)):
        part = Graph(calls[: last + 1], graph.shapes, graph.token_axes, graph.config)
        moved = W + SCALE * B @ (A * adapter)
        gain = MAGNITUDE * adapter / np.linalg.norm(moved, axis=1)
        found = wrong(part, lambda one, graph: changed[one.number])
        np.testing.assert_allclose(found, X @ (moved * gain[:, None]).T + BIAS, atol=1e-12)
    late = variant("lora-layer-offset", "one layer early")
    changed = {one.number: late(one, graph) or one for one in calls}
    np.testing.assert_allclose(
        wrong(graph, lambda one, graph: changed[one.number]), projected(0.0), atol=1e-12
    )


def test_lengths_do_not_move_to_an_adapter_without_them():
    """By formula: layer 1 has DoRA, layer 2 has not. Each would get the other's adapter."""
    calls: list[Call] = [call(0, "scale", X, by=1.0)]
    for layer in (1, 2):
        place = {"place": "mlp.up_proj", "layer": layer}
        last = len(calls)
        calls.append(call(last, "linear", Value(0), W, None, **place))
        made = (A * layer, B)
        calls.append(call(last + 1, "add_lora", Value(last), Value(0), *made, scale=SCALE, **place))
        if layer == 1:
            given = (W, BIAS, *made, MAGNITUDE)
            calls.append(
                call(last + 2, "dora_rescale", Value(last + 1), *given, scale=SCALE, **place)
            )
    graph = graph_of(*calls, num_hidden_layers=3)
    early = variant("lora-layer-offset", "one layer early")
    changed = {one.number: early(one, graph) or one for one in calls}
    part = Graph(calls[:4], graph.shapes, graph.token_axes, graph.config)
    found = wrong(part, lambda one, graph: changed[one.number])
    np.testing.assert_allclose(found, X @ (W + SCALE * B @ (2 * A)).T + BIAS, atol=1e-12)
    assert variant("lora-layer-offset", "one layer late")(calls[-1], graph) is None


def test_without_adapters_no_layer_brings_one():
    """By law: it would be the same bug a second time."""
    here = world("gemma4/dense")
    assert not here.calls(variant("layers-swapped", "layer i has i + 1, with its adapter"))


def test_adapters_of_the_last_layers_begin_at_the_first():
    assert [from_the_first(layer, 6, {4, 5}) for layer in range(3)] == [4, 5, 6]


@pytest.mark.parametrize("name", ["left in halves", "left in pairs"])
def test_rows_of_b_by_index(name):
    """Two heads of four rows; of four rows both orders move the same two."""
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    b, wide = RNG.standard_normal((8, RANK)), RNG.standard_normal((8, WIDTH))
    place = {"place": "self_attn.q_proj", "layer": 0}
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), wide, None, **place),
        call(2, "add_lora", Value(1), Value(0), A, b, scale=SCALE, **place),
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    found = wrong(graph, variant("lora-qk-not-permuted", name))
    np.testing.assert_allclose(found, X @ (wide + SCALE * b[order] @ A).T, atol=1e-12)


def test_a_merge_is_one_matrix():
    """By law: it is done where an update is added, so that no part of it leaves the update out."""
    here = world("adapters/peft_patterns")
    changed = here.calls(variant("lora-merge-rounding", "in bfloat16"))
    adds = {one.number for one in here.graph.calls if one.op == "add_lora"}
    assert adds and {*changed} == adds
    assert {one.options["scale"] for one in changed.values()} != {0.0}


@pytest.mark.parametrize("name", ["in bfloat16", "in bfloat16, of factors in bfloat16"])
def test_a_merge_rounds_factors_first_where_the_port_holds_them_so(name):
    """By formula: (1 + 2^-8) x 3 is 3.01171875, and 3 where the factor is rounded to 1."""
    stored = SimpleNamespace(mode=None, scale_dtype=None, bits=None, group_size=None)
    place = {"place": "mlp.up_proj", "layer": 0}
    calls = [
        call(0, "scale", np.ones((1, 1, 1)), by=1.0),
        replace(call(1, "linear", Value(0), place="mlp.up_proj", layer=0), inputs=(
            Value(0), Tensor("w"), Constant(None))),
        call(2, "add_lora", Value(1), Value(0), np.array([[1 + 2**-8]]), np.array([[1.0]]),
             scale=3.0, **place),
    ]  # fmt: skip
    graph = Graph(
        tuple(calls), ((1, 1, 1),) * 3, ((1,),) * 3, SimpleNamespace(), stored={"w": stored}
    )
    new = variant("lora-merge-rounding", name)(calls[2], graph)
    assert new is not None
    matrix = new.inputs[-2].change(
        ops, np.zeros((1, 1)), *(one.value for one in calls[2].inputs[2:4])
    )
    assert matrix == (3.0 if "factors" in name else 3.015625)


def test_factors_keep_their_place_in_the_graph():
    """By law: an exchanged factor is changed as the one before it was."""
    graph = stacked()
    transposed = variant("lora-factors-transposed", "A alone")(graph.calls[5], graph)
    assert transposed is not None
    moved = variant("lora-layer-offset", "one layer early")(graph.calls[3], graph)
    assert moved is not None and isinstance(moved.inputs[2], Constant)
    both = variant("lora-layer-offset", "one layer late")(transposed, graph)
    assert both is not None and both.inputs[2].change is transposed.inputs[2].change


@pytest.mark.parametrize(("name", "rows"), [("first", slice(2, 4)), ("second", slice(0, 2))])
def test_half_of_the_rows_stays_as_it_was(name, rows):
    """By hand: of four rows two."""
    w, b = W[:4], B[:4]
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), w, None, place="mlp.up_proj", layer=0),
        call(2, "add_lora", Value(1), Value(0), A, b, place="mlp.up_proj", layer=0, scale=SCALE),
    )
    found = wrong(graph, variant("lora-not-applied", f"but to the {name} half of the rows"))
    expected = X @ (w + SCALE * b @ A).T
    expected[..., rows] = (X @ w.T)[..., rows]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "rank", "kept"),
    [("first", 2, slice(0, 1)), ("second", 2, slice(1, 2)), ("first", 3, slice(0, 2))],
)
def test_half_of_the_rank_by_formula(name, rank, kept):
    """By hand: of three the first half has two."""
    a, b = RNG.standard_normal((rank, WIDTH)), RNG.standard_normal((OUTPUTS, rank))
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), W, None, place="mlp.up_proj", layer=0),
        call(2, "add_lora", Value(1), Value(0), a, b, place="mlp.up_proj", layer=0, scale=SCALE),
    )
    found = wrong(graph, variant("lora-rank-cut", f"the {name} half alone"))
    expected = X @ (W + SCALE * b[:, kept] @ a[kept]).T
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_an_odd_number_of_rows_has_no_half():
    graph = adapted()
    rewrite = variant("lora-not-applied", "but to the first half of the rows")
    assert all(rewrite(one, graph) is None for one in graph.calls)


def test_the_adapters_of_gate_and_up_are_exchanged():
    """By formula: both add what the other should; keys and values have none here."""
    a, b = RNG.standard_normal(A.shape), RNG.standard_normal(B.shape)
    gate, up = "mlp.gate_proj", "mlp.up_proj"
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "linear", Value(0), W, None, place=gate, layer=0),
        call(2, "add_lora", Value(1), Value(0), A, B, place=gate, layer=0, scale=SCALE),
        call(3, "linear", Value(0), W, None, place=up, layer=0),
        call(4, "add_lora", Value(3), Value(0), a, b, place=up, layer=0, scale=2.0),
        call(5, "add", Value(2), Value(4)),
        call(6, "multiply", Value(2), Value(4)),
    )
    rewrite = variant("lora-other-module", "gate and up exchanged")
    first, second = X @ (W + 2.0 * b @ a).T, X @ (W + SCALE * B @ A).T
    np.testing.assert_allclose(wrong(graph, rewrite), first * second, atol=1e-12)
    other = variant("lora-other-module", "keys and values exchanged")
    assert all(other(one, graph) is None for one in graph.calls)


def test_the_first_layers_adapter_may_be_on_all_that_have_one():
    """By law: layers that have none stay so."""
    graph = world("adapters/peft_patterns")
    calls = graph.calls(variant("lora-layer-offset", "the first one's on all"))
    assert calls
    assert all(one.op == "add_lora" and one.layer for one in calls.values())
