import math

import numpy as np
import pytest

from tests.draws import cast, normal
from tests.tolerances import assert_close, assert_same_bits


def gelu(value: float) -> float:
    return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))


def by_loop(x, routing, gate, up, down) -> np.ndarray:
    """Run each chosen expert on each token in Python's floats, and weigh what it says."""
    out = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        token = x[place].astype(np.float64)
        for expert, weight in enumerate(routing[place].astype(np.float64).tolist()):
            gates, ups = (part[expert].astype(np.float64) @ token for part in (gate, up))
            inner = [gelu(g) * u for g, u in zip(gates, ups, strict=True)]
            out[place] += weight * (down[expert].astype(np.float64) @ inner)
    return out


def draw(dtype, *, length=3, experts=4, width=5, inner=3):
    """Draw tokens, two experts for each, and the stacks of an MLP."""
    rng = np.random.default_rng(length)
    routing = np.zeros((2, length, experts))
    for place in np.ndindex(2, length):
        chosen = rng.permutation(experts)[:2]
        routing[(*place, chosen)] = rng.uniform(0.1, 1, 2)
    stacks = [(experts, inner, width), (experts, inner, width), (experts, width, inner)]
    made = [normal(n, *shape, dtype=dtype) for n, shape in enumerate(stacks)]
    return normal(9, 2, length, width, dtype=dtype), cast(routing, dtype), *made


@pytest.mark.parametrize("length", [1, 3, 40])
def test_follows_its_formula(precision, length):
    """By loop: in float32 to a few roundings, in halves to those of products rounded thrice."""
    backend, dtype = precision
    x, routing, *stacks = draw(dtype, length=length)
    found = backend.geglu_experts(x, routing, *stacks, per_token=2)
    exact = by_loop(x, routing, *stacks)
    slack = {8: 1e-14, 4: 4e-6}.get(dtype.itemsize, 2**-5 if dtype.name == "bfloat16" else 2**-8)
    assert np.abs(found.astype(np.float64) - exact).max() <= slack * np.abs(exact).max()
    assert found.dtype == dtype


def test_is_not_the_other_gate(backend):
    """By hand: `experts` gates with a SiLU, and differs by a few per cent."""
    x, routing, *stacks = draw(np.float32)
    found, other = (
        op(x, routing, *stacks, per_token=2) for op in (backend.geglu_experts, backend.experts)
    )
    assert np.abs(found - other).max() > 0.01 * np.abs(found).max()


def test_one_expert_is_a_gated_mlp(backend):
    """By law: alone and with weight 1 it is `linear(geglu(linear, linear))`."""
    x, routing, gate, up, down = draw(np.float32)
    alone = np.zeros_like(routing)
    alone[..., 1] = 1
    found = backend.geglu_experts(x, alone, gate, up, down, per_token=1)
    inner = backend.geglu(backend.linear(x, gate[1], None), backend.linear(x, up[1], None))
    assert_close(found, backend.linear(inner, down[1], None), kind="sum")


def test_an_expert_that_nobody_chose_is_not_read(backend):
    """By hand: a NaN in its matrices spoils nothing."""
    x, routing, *stacks = draw(np.float32)
    routing[..., 2:], routing[..., :2] = 0, 0.5
    before = backend.geglu_experts(x, routing, *stacks, per_token=2)
    for stack in stacks:
        stack[2:] = np.nan
    assert_same_bits(backend.geglu_experts(x, routing, *stacks, per_token=2), before)
