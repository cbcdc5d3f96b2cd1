"""The wrong activations against a plain loop over their formulas, and the halves of a gate."""

import math

import numpy as np
import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Call, Constant, Evaluator, Tensor, Value
from lockstep.reference import ops
from tests.parity.faults.hand_made import FLOAT64, call, graph_of, one_call, variant, wrong

POINTS = [-4.0, -1.0, -0.25, 0.0, 0.5, 2.7, 6.0]


def tanh_share(x):
    return 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


FORMULAS = {
    ("act-silu-vs-gelu", "silu for gelu", "gelu_tanh"): lambda x: x * sigmoid(x),
    ("act-silu-vs-gelu", "gelu (tanh) for silu", "silu"): lambda x: x * tanh_share(x),
    ("act-silu-vs-gelu", "gelu (erf) for silu", "silu"): lambda x: (
        x * 0.5 * math.erfc(-x / math.sqrt(2))
    ),
    ("gelu-erf-vs-tanh", "erf for tanh", "gelu_tanh"): lambda x: (
        x * 0.5 * math.erfc(-x / math.sqrt(2))
    ),
    ("gelu-erf-vs-tanh", "tanh for erf", "gelu_erf"): lambda x: x * tanh_share(x),
    ("gelu-quick", "for gelu", "gelu_erf"): lambda x: x * sigmoid(1.702 * x),
    ("gelu-quick", "for silu", "silu"): lambda x: x * sigmoid(1.702 * x),
    ("gelu-missing-x-factor", "", "gelu_tanh"): tanh_share,
    ("gelu-missing-x-factor", "", "gelu_erf"): lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
    ("gelu-missing-x-factor", "", "silu"): sigmoid,
    ("act-name-from-wrong-field", "relu", "silu"): lambda x: max(x, 0.0),
    ("act-name-from-wrong-field", "relu squared", "gelu_tanh"): lambda x: max(x, 0.0) ** 2,
    ("act-name-from-wrong-field", "none", "gelu_erf"): lambda x: x,
}


@pytest.mark.parametrize("case", FORMULAS, ids=" ".join)
def test_a_wrong_activation_is_its_formula(case):
    """By loop."""
    found = one_call(*case, np.array([[POINTS]]), place="mlp.act_fn")
    expected = [FORMULAS[case](x) for x in POINTS]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(("dtype", "last"), [("float32", 9.5), ("float16", 4.0)])
def test_a_tanh_of_exponentials_fails_where_they_overflow(dtype, last):
    """By hand: 2 sqrt(2/pi) (x + 0.044715 x^3) reaches ln 3.4e38 = 88.7 between 9.5 and 10.5, and
    ln 65504 = 11.1 between 4 and 5."""
    points = np.array([[[-20.0, 1.0, last, last + 1.0]]])
    found = one_call("gelu-overflow", f"exponentials of {dtype}", "gelu_tanh", points)
    np.testing.assert_array_equal(np.isnan(found[0, 0]), [False, False, False, True])
    np.testing.assert_array_equal(found[..., :3], ops.gelu_tanh(points[..., :3]))


X = np.array([[[1.0, -2.0]]])
GATE = np.array([[1.0, 0.5], [2.0, 1.0], [0.0, -1.0]])
UP = np.array([[3.0, 1.0], [0.5, 0.5], [1.0, 2.0]])


def gated():
    """A gated MLP without its last matrix, reading its weights from a checkpoint."""

    def linear(number, name):
        weight = Tensor(f"model.layers.0.mlp.{name}.weight")
        inputs = (Constant(X), weight, Constant(None))
        return Call(number, "linear", inputs, {}, (), f"mlp.{name}", 0)

    return (
        linear(0, "gate_proj"),
        linear(1, "up_proj"),
        call(2, "silu", Value(0), place="mlp.act_fn", layer=0),
        call(3, "multiply", Value(2), Value(1), place="mlp.down_proj", layer=0),
    )


def computed(rewrite):
    from lockstep.parity.graph import Graph

    read = {"gate_proj": GATE, "up_proj": UP}
    graph = Graph(gated(), ((1, 1, 3),) * 4, ((1,),) * 4, None)
    calls = {one.number: rewrite(one, graph) for one in graph.calls}
    run = Evaluator(graph, ops, FLOAT64, {}, lambda tensor: read[tensor.name.split(".")[-2]])
    return run.target(3, {number: one for number, one in calls.items() if one is not None})


@pytest.mark.parametrize("name", ["in the product", "in the weights"])
def test_the_other_half_is_activated(name):
    """By loop."""
    gate, up = (X[0, 0] @ weight.T for weight in (GATE, UP))
    expected = [u * sigmoid(u) * g for g, u in zip(gate, up, strict=True)]
    np.testing.assert_allclose(
        computed(variant("swiglu-gate-up-swapped", name))[0, 0], expected, rtol=1e-12
    )


PRODUCTS = {
    "the gate alone": lambda gate, up: gate * sigmoid(gate),
    "up alone": lambda gate, up: up,
    "added": lambda gate, up: gate * sigmoid(gate) + up,
    "both activated": lambda gate, up: gate * sigmoid(gate) * up * sigmoid(up),
    "the product activated": lambda gate, up: gate * up * sigmoid(gate * up),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gate_and_up_are_put_together_otherwise(name):
    """By loop."""
    gates, ups = np.array([[POINTS]]), np.array([[POINTS[::-1]]])
    graph = graph_of(
        call(0, "silu", gates, place="mlp.act_fn"),
        call(1, "multiply", Value(0), ups, place="mlp.down_proj"),
    )
    expected = [PRODUCTS[name](*pair) for pair in zip(POINTS, POINTS[::-1], strict=True)]
    found = wrong(graph, variant("gated-product-wrong", name))
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "product"),
    [("both activated", lambda gate, up: max(gate, 0) * max(up, 0)),
     ("the product activated", lambda gate, up: max(gate * up, 0))],
)  # fmt: skip
def test_another_activation_is_that_of_what_is_put_together_too(name, product):
    """By loop: a port has one activation, and what it activates besides it activates by that."""
    gates, ups = np.array([[POINTS]]), np.array([[POINTS[::-1]]])
    graph = graph_of(
        call(0, "silu", gates, place="mlp.act_fn"),
        call(1, "multiply", Value(0), ups, place="mlp.down_proj"),
    )
    bugs = {"act-name-from-wrong-field": "relu", "gated-product-wrong": name}
    found = hypotheses([one for one in catalogue() if one.id in bugs], graph)
    atoms = [Atom(one, one.calls) for one in found if bugs[one.id] == one.variant]
    run = Evaluator(graph, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    found = run.target(1, rewritten(atoms, graph))
    expected = [product(*pair) for pair in zip(POINTS, POINTS[::-1], strict=True)]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


def test_a_fused_matrix_is_split_into_even_and_odd_rows():
    """By loop."""
    fused = [*GATE, *UP]
    gate, up = ([float(X[0, 0] @ row) for row in fused[first::2]] for first in (0, 1))
    expected = [g * sigmoid(g) * u for g, u in zip(gate, up, strict=True)]
    np.testing.assert_allclose(
        computed(variant("gate-up-interleaved-split"))[0, 0], expected, rtol=1e-6
    )


def experts(activation, routing, gate, up, down, x, before=False):
    """The experts by a plain loop over tokens and experts."""
    out = np.zeros_like(x)
    for token in range(x.shape[1]):
        for expert, weight in enumerate(routing[0, token]):
            if weight:
                given = x[0, token] * (weight if before else 1)
                halves = zip(gate[expert] @ given, up[expert] @ given, strict=True)
                inner = [activation(g) * u for g, u in halves]
                out[0, token] += down[expert] @ inner * (1 if before else weight)
    return out


RNG = np.random.default_rng(5)
TOKENS = RNG.normal(size=(1, 3, 4))
ROUTING = np.array([[[0.75, 0, 0.25], [0, 1.5, 0.5], [0.5, 0.5, 0]]])
STACKS = RNG.normal(size=(3, 5, 4)), RNG.normal(size=(3, 5, 4)), RNG.normal(size=(3, 4, 5))


@pytest.mark.parametrize(
    ("id", "name", "expected"),
    [
        ("gelu-quick", "for silu", lambda x: x * sigmoid(1.702 * x)),
        ("act-name-from-wrong-field", "relu", lambda x: max(x, 0.0)),
        ("act-silu-vs-gelu", "gelu (tanh) for silu", lambda x: x * tanh_share(x)),
    ],
)
def test_the_experts_have_the_wrong_activation_too(id, name, expected):
    """By loop."""
    found = one_call(id, name, "experts", TOKENS, ROUTING, *STACKS, per_token=2)
    np.testing.assert_allclose(found, experts(expected, ROUTING, *STACKS, TOKENS), rtol=1e-10)


def test_the_experts_gate_and_up_are_exchanged():
    """By loop."""
    gate, up, down = STACKS
    found = one_call(
        "swiglu-gate-up-swapped", "in the product",
        "experts", TOKENS, ROUTING, gate, up, down, per_token=2,
    )  # fmt: skip
    silu = experts(lambda x: x * sigmoid(x), ROUTING, up, gate, down, TOKENS)
    np.testing.assert_allclose(found, silu, rtol=1e-10)


def test_a_weight_may_go_to_what_an_expert_is_given():
    """By loop."""
    found = one_call(
        "moe-weight-on-output-vs-input", "",
        "experts", TOKENS, ROUTING, *STACKS, per_token=2,
    )  # fmt: skip
    silu = experts(lambda x: x * sigmoid(x), ROUTING, *STACKS, TOKENS, before=True)
    np.testing.assert_allclose(found, silu, rtol=1e-10)


def test_a_weight_on_the_input_keeps_a_wrong_activation():
    """By loop: both bugs at once."""
    both = graph_of(call(0, "experts", TOKENS, ROUTING, *STACKS, per_token=2))
    first = variant("act-name-from-wrong-field", "relu")
    second = variant("moe-weight-on-output-vs-input")
    found = wrong(both, lambda one, graph: second(first(one, graph), graph))
    relu = experts(lambda x: max(x, 0.0), ROUTING, *STACKS, TOKENS, before=True)
    np.testing.assert_allclose(found, relu, rtol=1e-10)
