"""Attention gone wrong: by hand, by loop, by index, and on small models."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.attention import FAULTS
from lockstep.parity.graph import Evaluator, Graph, Value
from lockstep.parity.noise.exact import FLOAT64
from lockstep.reference import ops
from tests.parity.explaining.ports import explained, model_of, port
from tests.parity.explaining.ports import graph_of as small_graph
from tests.parity.faults.hand_made import call, graph_of, value_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "llama/biased_llama3", "gemma4/dense", "gemma4/effective", "qwen3_moe/fused",
    "models/tied_bfloat16", "gpt2/variant", "gpt2/original", "gguf/qwen3_mixed.gguf",
    "keys that nobody uses",
)  # fmt: skip
HIDDEN = {
    "qkv-bias-dropped[of keys]": "without rope it adds the same to every score of a query",
    "kv-sharing-ignored[keys and values of the first layer of its kind]": (
        "of no kind here two layers have keys that another one shares"
    ),
}
SMALL = "models/untied_float32"
BATCH, HEADS, GROUPS, LENGTH, WIDTH = 1, 4, 2, 5, 6
RNG = np.random.default_rng(11)
QUERIES = RNG.standard_normal((BATCH, HEADS, LENGTH, WIDTH))
KEYS, VALUES = RNG.standard_normal((2, BATCH, GROUPS, LENGTH, WIDTH))
POSITIONS = np.arange(LENGTH)[None]


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def scores(scale: float, **config) -> Graph:
    return graph_of(
        call(0, "scale", QUERIES, by=1.0),
        call(1, "scale", KEYS, by=1.0),
        call(2, "attention_scores", Value(0), Value(1), scale=scale, layer=0),
        **config,
    )


SIZES = {"hidden_size": 36, "num_attention_heads": HEADS, "head_dim": 3}


@pytest.mark.parametrize(
    ("id", "name", "right", "expected"),
    [
        ("attn-scale-missing", "", WIDTH**-0.5, 1.0),
        ("attn-scale-twice", "", WIDTH**-0.5, 1 / WIDTH),
        ("attn-head-dim-derived", "", WIDTH**-0.5, 1 / 3),
        ("attn-scale-should-be-one", "1 / sqrt(head_dim)", 1.0, WIDTH**-0.5),
        ("attn-scale-should-be-one", "1 / sqrt(256)", 1.0, 1 / 16),
        ("attn-scale-should-be-one", "1 / sqrt(hidden_size / heads)", 1.0, 1 / 3),
        ("attn-scale-should-be-one", "1 / sqrt(head_dim of sliding layers)", 1.0, 3**-0.5),
    ],
)
def test_scales_by_hand(id, name, right, expected):
    found = wrong(scores(right, **SIZES), variant(id, name))
    plain = np.stack([QUERIES[0, h] @ KEYS[0, h // 2].T for h in range(HEADS)])[None]
    np.testing.assert_allclose(found, plain * expected, rtol=1e-13)


def test_the_width_of_the_stream_for_that_of_a_head():
    """By hand: a stream of 36 is six times six, so that its root would be the scale, twice."""
    change = variant("attn-head-dim-derived", "1 / sqrt(hidden_size)")
    right, found = (
        scores(WIDTH**-0.5),
        wrong(scores(WIDTH**-0.5, **SIZES | {"hidden_size": 25}), change),
    )
    np.testing.assert_allclose(found, wrong(right, variant("attn-scale-missing")) / 5, rtol=1e-13)
    graph = scores(WIDTH**-0.5, **SIZES)
    assert change(graph.calls[2], graph) is None


@pytest.mark.parametrize("id", ["attn-scale-missing", "attn-scale-twice"])
def test_a_scale_of_one_is_left_alone(id):
    """By law: where scores are not scaled, that is another entry."""
    graph = scores(1.0, **SIZES)
    assert variant(id)(graph.calls[2], graph) is None


def test_the_number_of_the_layer():
    """By formula: GPT-2 divides by the layer's number where its config says so."""
    graph = scores(WIDTH**-0.5 / 2, **SIZES, scale_attn_by_inverse_layer_idx=True)
    found = variant("attn-scale-missing", "not divided by the layer's number")(
        graph.calls[2], graph
    )
    assert found is not None and found.options["scale"] == pytest.approx(WIDTH**-0.5)


def test_the_number_of_the_layer_where_nobody_asks_for_it():
    """By hand: the third layer has a third of what it should, and the first what it should."""
    change = variant("attn-scale-twice", "divided by the layer's number too")
    graph = scores(WIDTH**-0.5, **SIZES, scale_attn_by_inverse_layer_idx=False)
    first, third = graph.calls[2], replace(graph.calls[2], layer=2)
    found = change(third, graph)
    assert change(first, graph) is None
    assert found is not None and found.options["scale"] == pytest.approx(WIDTH**-0.5 / 3)
    asked = scores(WIDTH**-0.5, **SIZES, scale_attn_by_inverse_layer_idx=True)
    assert change(third, asked) is None and change(third, scores(WIDTH**-0.5, **SIZES)) is None


def test_tiled_heads_by_index():
    found = wrong(scores(1.0, **SIZES), variant("gqa-tile-vs-repeat"))
    for head in range(HEADS):
        np.testing.assert_allclose(found[0, head], QUERIES[0, head] @ KEYS[0, head % GROUPS].T)


@pytest.mark.parametrize(
    ("name", "read"),
    [("min(h, G - 1)", [0, 1, 1, 1]), ("0", [0, 0, 0, 0]), ("G - 1", [1, 1, 1, 1]),
     ("the next one", [1, 1, 0, 0]), ("from the last on", [1, 1, 0, 0])],
)  # fmt: skip
def test_heads_that_read_another_key_head_by_index(name, read):
    found = wrong(scores(1.0, **SIZES), variant("gqa-head-mapping", name))
    for head in range(HEADS):
        np.testing.assert_allclose(found[0, head], QUERIES[0, head] @ KEYS[0, read[head]].T)


def test_values_in_the_place_of_keys_by_loop():
    graph = attention()
    values, bug = value_of(graph, 12), variant("k-taken-from-v")
    part = Evaluator(graph, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    found = part.target(7, {7: bug(graph.calls[7], graph)})
    for head in range(HEADS):
        expected = QUERIES[0, head] @ values[0, head // 2].T
        np.testing.assert_allclose(found[0, head], expected, rtol=1e-12)


def attention() -> Graph:
    """Scores of turned keys, and a context of values that have a projection of their own."""
    wide = RNG.standard_normal((BATCH, LENGTH, 8))
    rows = RNG.standard_normal((GROUPS * WIDTH, 8))
    return graph_of(
        call(0, "scale", QUERIES, by=1.0),
        call(1, "scale", wide, by=1.0),
        call(2, "linear", Value(1), rows, None, place="self_attn.k_proj", layer=0),
        call(3, "split_heads", Value(2), heads=GROUPS),
        call(4, "heads_first", Value(3)),
        call(5, "rope_frequencies", theta=10.0, dims=WIDTH),
        call(6, "rope", Value(4), POSITIONS, Value(5), factor=1.0, layer=0),
        call(7, "attention_scores", Value(0), Value(6), scale=1.0, layer=0),
        call(8, "causal_mask", POSITIONS, POSITIONS, window=None),
        call(9, "softmax", Value(7), Value(8), masked_row="uniform", layer=0),
        call(10, "linear", Value(1), rows[::-1].copy(), None, place="self_attn.v_proj", layer=0),
        call(11, "split_heads", Value(10), heads=GROUPS),
        call(12, "heads_first", Value(11)),
        call(13, "attention_context", Value(9), Value(12), Value(8), layer=0),
    )


@pytest.mark.parametrize(
    ("name", "number"), [("keys as they are cached", 6), ("keys before their turn", 4)]
)
def test_keys_for_values_by_loop(name, number):
    graph = attention()
    probs, keys = value_of(graph, 9), value_of(graph, number)
    found = wrong(graph, variant("v-taken-from-k", name))
    for head in range(HEADS):
        expected = probs[0, head] @ keys[0, head // 2]
        np.testing.assert_allclose(found[0, head], expected, rtol=1e-12, atol=1e-14)


def test_turned_values_by_loop():
    graph = attention()
    probs, values = value_of(graph, 9), value_of(graph, 12)
    found = wrong(graph, variant("rope-applied-to-v"))
    turned = np.zeros_like(values)
    for p in range(LENGTH):
        for j in range(WIDTH // 2):
            angle = p * 10.0 ** (-2 * j / WIDTH)
            x, y = values[0, :, p, j], values[0, :, p, j + WIDTH // 2]
            turned[0, :, p, j] = x * np.cos(angle) - y * np.sin(angle)
            turned[0, :, p, j + WIDTH // 2] = y * np.cos(angle) + x * np.sin(angle)
    for head in range(HEADS):
        np.testing.assert_allclose(
            found[0, head], probs[0, head] @ turned[0, head // 2], atol=1e-13
        )


@pytest.mark.parametrize(
    ("name", "beside", "same"),
    [
        ("by the frequencies of the keys, each token by its place", "rope-sign-flipped", True),
        ("by the frequencies of the keys, each token by its place", "rope-theta-default", False),
        ("as keys should turn", "rope-sign-flipped", True),
        ("as keys should turn", "rope-theta-default", True),
        ("", "rope-sign-flipped", False),
        ("", "rope-theta-default", False),
    ],
)
def test_what_turned_values_take_over_from_keys(name, beside, same):
    """By law: the values are the same whatever the keys have that they do not take over."""
    model, graph = model_of(SMALL), small_graph(SMALL)
    every = hypotheses(catalogue(), graph)
    on_values = next(one for one in every if (one.id, one.variant) == ("rope-applied-to-v", name))
    other = next(one for one in every if one.id == beside)
    run = Evaluator(graph, model.ops, np.dtype(np.float64), {}, Tensors(model.checkpoint))
    number = min(on_values.calls)
    values = [
        run.target(number, {**calls, **{n: graph.calls[n] for n in other.calls}})
        for calls in (
            rewritten([Atom(one, one.calls) for one in some], graph) or {}
            for some in ((on_values,), (on_values, other))
        )
    ]
    assert np.allclose(*values, rtol=0, atol=1e-12) == same


def test_shared_keys_and_own_values_are_told_apart():
    """By law: in a model that wants keys for values only the entry for it applies, and no other."""
    own, shared = variant("v-taken-from-k", "keys as they are cached"), variant(
        "v-from-normed-keys", "turned keys")  # fmt: skip
    graph = world("gemma4/dense").graph
    kinds = {one.layer: (own(one, graph) is None, shared(one, graph) is None)
             for one in graph.calls if one.op == "attention_context"}  # fmt: skip
    has_values = graph.config.has_values
    assert kinds == {layer: (not has_values(layer), has_values(layer)) for layer in kinds}
    assert {has_values(layer) for layer in kinds} == {True, False}


@pytest.mark.parametrize("name", ["normed keys, normed again", "turned keys, normed again"])
def test_values_may_come_of_the_keys_norm_in_any_layer(name):
    """By law: of all layers with keys of their own."""
    graph, change = world("gemma4/dense").graph, variant("v-from-normed-keys", name)
    norms = [one for one in graph.calls if one.place == "self_attn.v_norm"]
    norms = [one for one in norms if one.op == "unit_norm"]
    assert {one.layer for one in norms if change(one, graph)} == {one.layer for one in norms}
    assert {graph.config.has_values(one.layer) for one in norms} == {True, False}


def test_layers_that_share_keys_project_their_own():
    """By law: only layers without keys of their own are changed, and in both places."""
    changed = world("gemma4/effective").calls(variant("kv-sharing-ignored", "keys and values"))
    config = world("gemma4/effective").graph.config
    assert {(one.op, config.owns_keys(one.layer)) for one in changed.values()} == {
        ("attention_scores", False), ("attention_context", False),
    }  # fmt: skip


def test_shared_keys_that_are_turned_once_more_by_loop():
    """What turns twice turns by twice the angle; only where the keys are another layer's."""
    width, queries = 4, RNG.standard_normal((1, 1, LENGTH, 4))
    keys = RNG.standard_normal((1, 1, LENGTH, width))
    graph = graph_of(
        call(0, "rope_frequencies", theta=100.0, dims=width),
        call(1, "scale", keys, by=1.0),
        call(2, "rope", Value(1), POSITIONS, Value(0), layer=0, factor=1.0),
        call(3, "attention_scores", queries, Value(2), layer=1, scale=1.0),
    )
    found = wrong(graph, variant("kv-sharing-ignored", "keys turned once more"))
    for p in range(LENGTH):
        turned = np.zeros(width)
        for j, frequency in enumerate((1.0, 0.1)):
            one, other, angle = keys[0, 0, p, j], keys[0, 0, p, j + 2], 2 * p * frequency
            turned[j] = one * np.cos(angle) - other * np.sin(angle)
            turned[j + 2] = other * np.cos(angle) + one * np.sin(angle)
        np.testing.assert_allclose(found[0, 0, :, p], queries[0, 0] @ turned, atol=1e-13)


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_values_of_turned_keys_that_are_normed_again_are_named(level):
    name = "gemma4/dense"
    bug = "v-from-normed-keys[turned keys, normed again]"
    known = [one for one in catalogue() if one.family in ("attention", "norm", "rope")]
    found = explained(name, port(name, [bug], level=level), known)
    assert [f"{one.id}[{one.variant}]" for one in found.faults] == [bug] and not found.unexplained
