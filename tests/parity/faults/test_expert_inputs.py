"""Routers and experts that read another stream: by formula, from what a right run computes."""

import numpy as np
import pytest

from lockstep.parity.graph import Tensor, Value
from lockstep.parity.noise.exact import FLOAT64
from lockstep.reference.checkpoint.stack import Stack
from tests.parity.faults.hand_made import call, graph_of, one_call, variant, wrong
from tests.parity.faults.planted import World, world

ROUTER, EXPERTS = "moe-router-input-wrong", "moe-experts-input-wrong"
LAYER = "model.layers.1"
RIGHT = {
    "what the dense MLP's norm gives": "pre_feedforward_layernorm",
    "what attention's norm gives": "input_layernorm",
    "the stream before attention": "",  # what the layer before gives
}


def value(at: World, tap: str, rewrite=None) -> np.ndarray:
    """Return a tap in float64, with a bug in this layer alone: what goes in stays right."""
    calls = {} if rewrite is None else at.calls(rewrite)
    here = {n: one for n, one in calls.items() if one.layer == 1}
    return at.evaluator(dtype=FLOAT64).target(at.graph.taps[tap], here)


def weight(at: World, name: str) -> np.ndarray:
    return np.asarray(at.read(Tensor(name)), np.float64)


def stream(at: World, name: str) -> np.ndarray:
    return value(at, f"{LAYER}.{RIGHT[name]}" if RIGHT[name] else "model.layers.0")


@pytest.mark.parametrize("name", RIGHT)
def test_gemmas_router_norms_another_stream(name):
    at = world("gemma4/sparse")
    x = stream(at, name)
    eps = at.graph.config.rms_norm_eps
    expected = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)
    found = value(at, f"{LAYER}.router.norm", variant(ROUTER, name))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert not np.allclose(found, value(at, f"{LAYER}.router.norm"))


@pytest.mark.parametrize("name", ["what attention's norm gives", "the stream before attention"])
def test_qwens_router_projects_another_stream(name):
    at = world("qwen3_moe/separate")
    expected = stream(at, name) @ weight(at, f"{LAYER}.mlp.gate.weight").T
    found = value(at, f"{LAYER}.mlp.gate", variant(ROUTER, name))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def said_by_experts(x, routing, stacks, act):
    """Sum what the chosen experts say, token by token."""
    out = np.zeros_like(x)
    gate, up, down = ([np.asarray(one, np.float64) for one in stack] for stack in stacks)
    for row in np.ndindex(x.shape[:2]):
        for expert in np.flatnonzero(routing[row]):
            inner = act(gate[expert] @ x[row]) * (up[expert] @ x[row])
            out[row] += routing[row][expert] * (down[expert] @ inner)
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def stacks_of(at: World):
    call = next(one for one in at.graph.calls if one.op == "experts" and one.layer == 1)
    count = at.graph.input_shape(call, 1)[-1]
    return [[at.read(ref)[one] for one in range(count)] for ref in call.inputs[2:]]  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("what attention's norm gives", f"{LAYER}.input_layernorm"),
        ("the stream without its norm", f"{LAYER}.residual"),
    ],
)
def test_qwens_experts_read_another_stream_than_their_router(name, read):
    at = world("qwen3_moe/separate")
    x, routing = value(at, read), value(at, f"{LAYER}.mlp.routing")
    expected = said_by_experts(x, routing, stacks_of(at), silu)
    found = value(at, f"{LAYER}.mlp.experts", variant(EXPERTS, name))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(
        value(at, f"{LAYER}.mlp.routing", variant(EXPERTS, name)), routing
    )


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("their norm of the stream before attention", "model.layers.0"),
        ("their norm of what the dense MLP says", f"{LAYER}.mlp.down_proj"),
    ],
)
def test_gemmas_experts_norm_another_stream(name, read):
    at = world("gemma4/sparse")
    x, tap = value(at, read), f"{LAYER}.pre_feedforward_layernorm_2"
    root = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + at.graph.config.rms_norm_eps)
    expected = x / root * weight(at, f"{tap}.weight")
    np.testing.assert_allclose(value(at, tap, variant(EXPERTS, name)), expected, rtol=1e-9)


def test_gemmas_dense_mlp_reads_the_norm_of_the_experts():
    at, name = world("gemma4/sparse"), "the dense MLP reads what their norm gives"
    x = value(at, f"{LAYER}.pre_feedforward_layernorm_2")
    for part in ("gate_proj", "up_proj"):
        expected = x @ weight(at, f"{LAYER}.mlp.{part}.weight").T
        found = value(at, f"{LAYER}.mlp.{part}", variant(EXPERTS, name))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_norm_that_the_experts_alone_read_is_not_left_out_for_them():
    """It would be a norm that is missing, which has a name."""
    graph = world("gemma4/sparse").graph
    rewrite = variant(EXPERTS, "the stream without its norm")
    assert all(rewrite(call, graph) is None for call in graph.calls)


def numbered(*begins):
    """Stacks of three experts of one number each, which rises by 1 from expert to expert."""
    return [Stack((3, 1, 1), lambda e, by=by: np.full((1, 1), by + e)) for by in begins]


@pytest.mark.parametrize(
    ("order", "stands"), [("from the last to the first", 2), ("each the next one", 1)]
)
def test_the_last_matrices_alone_in_another_order(order, stands):
    """By hand: the first of three experts gates with its own ones, and ends with another's."""
    routing = np.array([[[1.0, 0.0, 0.0]]])
    graph = graph_of(
        call(0, "multiply", routing, np.ones_like(routing)),
        call(1, "experts", np.ones((1, 1, 1)), Value(0), *numbered(1, 2, 10), per_token=1),
    )
    found = wrong(graph, variant("moe-expert-order", f"{order}, the last matrices alone"))
    np.testing.assert_allclose(found, [[[silu(1.0) * 2 * (10 + stands)]]], rtol=1e-12)


def test_the_weight_multiplies_the_gate_alone():
    """By hand: two experts of one number each, w = 0.25 and 0.75."""
    routing = np.array([[[0.25, 0.0, 0.75]]])
    found = one_call(
        "moe-weight-on-output-vs-input", "the gate alone", "experts",
        np.full((1, 1, 1), 2.0), routing, *numbered(1, 2, 10), per_token=2,
    )  # fmt: skip
    expected = 10 * silu(0.25 * 2) * 4 + 12 * silu(0.75 * 6) * 8
    np.testing.assert_allclose(found, [[[expected]]], rtol=1e-12)
