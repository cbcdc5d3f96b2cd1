import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops import dequantize_blocks
from tests.draws import cast, normal, packed_matrix, seeds, sizes, whole
from tests.ops_backends import DTYPES
from tests.sampled import sampled
from tests.tolerances import assert_close, assert_same_bits


def by_loop(x, routing, gate, up, down) -> np.ndarray:
    """Run each expert on each token in Python's floats, chosen or not, and weigh what it says."""
    out = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        token = x[place].astype(np.float64)
        for expert, weight in enumerate(routing[place].astype(np.float64).tolist()):
            if weight == 0:
                continue
            gates, ups = (part[expert].astype(np.float64) @ token for part in (gate, up))
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gates, ups, strict=True)]
            out[place] += weight * (down[expert].astype(np.float64) @ inner)
    return out


def draw(seed, dtype, *, length=3, experts=4, per_token=2, width=5, inner=3):
    """Draw tokens, who chose whom, and the stacks of an MLP."""
    rng = np.random.default_rng(seed)
    routing = np.zeros((2, length, experts))
    for place in np.ndindex(2, length):
        chosen = rng.permutation(experts)[:per_token]
        routing[(*place, chosen)] = rng.uniform(0.1, 1, per_token)
    stacks = [(experts, inner, width), (experts, inner, width), (experts, width, inner)]
    made = [normal(seed + n, *shape, dtype=dtype) for n, shape in enumerate(stacks)]
    return normal(seed + 9, 2, length, width, dtype=dtype), cast(routing, dtype), *made


@settings(max_examples=25)
@given(seed=seeds, length=sizes, experts=st.integers(1, 6), some=sizes, width=sizes, inner=sizes)
def test_follows_its_formula(precision, seed, length, experts, some, width, inner):
    """By loop: in float32 to a few roundings, in halves to those of products rounded thrice."""
    backend, dtype = precision
    per_token = min(some, experts)
    x, routing, *stacks = draw(
        seed, dtype, length=length, experts=experts, per_token=per_token, width=width, inner=inner
    )
    found = backend.experts(x, routing, *stacks, per_token=per_token)
    exact = by_loop(x, routing, *stacks)
    size = scale(x, routing, *stacks)
    slack = {8: 1e-14, 4: 4e-6}.get(dtype.itemsize, 2**-5 if dtype.name == "bfloat16" else 2**-8)
    assert np.abs(found.astype(np.float64) - exact).max() <= slack * size
    assert found.dtype == dtype


def scale(x, routing, gate, up, down) -> float:
    """Return the size that a result would have if nothing cancelled."""
    parts = [np.abs(part.astype(np.float64)) for part in (x, routing, gate, up, down)]
    return float(by_loop(*parts).max())


def test_many_visits(backend):
    """By loop: 200 visits, which MLX sorts by expert first."""
    x, routing, *stacks = draw(3, np.float32, length=25, experts=7, per_token=4)
    found = backend.experts(x, routing, *stacks, per_token=4)
    assert_close(found, by_loop(x, routing, *stacks), kind="sum")


@sampled(6, "cpu-3")
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_stacks(backend, bits):
    """By loop on the exact values of the codes."""
    shapes = [(64, 32), (64, 32), (32, 64)]
    made = [
        [
            packed_matrix(bits * 10 + e, *shape, bits=bits, group=32, dtype=DTYPES["bfloat16"])
            for e in range(3)
        ]
        for shape in shapes
    ]
    packed = [stacked([one for one, _ in stack]) for stack in made]
    exact = [np.stack([value for _, value in stack]) for stack in made]
    x, routing = normal(0, 2, 4, 32) / 8, draw(1, np.float32, length=4, experts=3)[1]
    found = backend.experts(x, routing, *packed, per_token=2)
    assert_close(found, by_loop(x, routing, *exact), kind="sum", backend=backend)


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "IQ4_NL"])
def test_stacks_of_blocks(backend, name):
    """By law: in the block formats of GGUF they are what they expand to."""
    weights, size = BLOCKS[name]
    rng = np.random.default_rng(len(name))
    shapes = [(3, 2, weights), (3, 2, weights), (3, weights, 2)]
    blocks = [rng.integers(0, 64, (3, 2, size), np.uint8) for _ in range(2)]
    packed = [BlockTensor(part, name) for part in blocks]
    exact = [dequantize_blocks(part, rows=slice(None), dtype=DTYPES["float64"]) for part in packed]
    assert [part.shape for part in exact] == shapes[:2]
    x, routing = normal(0, 2, 4, weights) / 64, draw(1, np.float32, length=4, experts=3)[1]
    down = normal(2, *shapes[2])
    found = backend.experts(x, routing, *packed, down, per_token=2)
    assert_close(found, by_loop(x, routing, *exact, down), kind="sum", backend=backend)


def stacked(matrices) -> QuantizedTensor:
    parts = (
        np.stack([getattr(one, n) for one in matrices]) for n in ("packed", "scales", "biases")
    )
    return QuantizedTensor(*parts, matrices[0].bits, matrices[0].group_size, "affine")


def test_one_expert_is_a_gated_mlp(backend):
    """By law: alone and with weight 1 it is `linear(swiglu(linear, linear))`."""
    x, routing, gate, up, down = draw(0, np.float32, experts=1, per_token=1)
    found = backend.experts(x, np.ones_like(routing), gate, up, down, per_token=1)
    inner = backend.swiglu(backend.linear(x, gate[0], None), backend.linear(x, up[0], None))
    assert_close(found, backend.linear(inner, down[0], None), kind="sum")


def test_tokens_do_not_know_of_each_other(backend):
    """By law: a token alone gives what it gives among others, whoever shares its experts."""
    x, routing, *stacks = draw(0, np.float32, length=6)
    together = backend.experts(x, routing, *stacks, per_token=2)
    for place in np.ndindex(2, 6):
        one = [part[place][None, None] for part in (x, routing)]
        alone = backend.experts(*one, *stacks, per_token=2)
        assert_close(alone[0, 0], together[place], kind="sum")


def test_the_order_of_experts_does_not_matter(backend):
    """By law: numbered otherwise they say the same; whole numbers keep every sum exact."""
    x, routing, *stacks = draw(0, np.float32)
    order = np.array([2, 0, 3, 1])
    renumbered = [stack[order] for stack in stacks]
    before = backend.experts(x, routing, *stacks, per_token=2)
    after = backend.experts(x, routing[..., order], *renumbered, per_token=2)
    assert_close(after, before, kind="sum")


def test_an_expert_that_nobody_chose_is_not_read(backend):
    """By hand: a NaN in its matrices spoils nothing."""
    x, routing, *stacks = draw(0, np.float32)
    routing[..., 2], routing[..., 3] = 0, 0
    routing[..., :2] = 0.5
    before = backend.experts(x, routing, *stacks, per_token=2)
    for stack in stacks:
        stack[2:] = np.nan
    assert_same_bits(backend.experts(x, routing, *stacks, per_token=2), before)


def test_a_nan_weight_spoils_its_token_alone(backend):
    """By hand: so that what the router could not decide shows."""
    x, routing, *stacks = draw(0, np.float32)
    routing[1, 2] = [np.nan, np.nan, 0, 0]
    found = np.isnan(backend.experts(x, routing, *stacks, per_token=2))
    assert found[1, 2].all() and found.sum() == x.shape[-1]


@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 3, 5)])
def test_no_tokens(precision, shape):
    """By hand: nobody is asked."""
    backend, dtype = precision
    _, _, *stacks = draw(0, dtype)
    routing = np.zeros((*shape[:2], 4), dtype)
    found = backend.experts(np.zeros(shape, dtype), routing, *stacks, per_token=2)
    assert (found.shape, found.dtype) == (shape, dtype)


def test_more_experts_than_announced(backend):
    """By hand: refused; MLX, which would have to wait to know, takes the first, as it says."""
    x, routing, *stacks = draw(0, np.float32, per_token=3)
    if backend.name != "mlx":
        with pytest.raises(ValueError, match="a token has 3, not 2"):
            backend.experts(x, routing, *stacks, per_token=2)
        return
    first = np.where(np.cumsum(routing != 0, axis=-1) <= 2, routing, 0)
    found, expected = (backend.experts(x, r, *stacks, per_token=2) for r in (routing, first))
    assert_same_bits(found, expected)


def test_only_chosen_experts_are_asked_for():
    """By hand: the reference reads each chosen expert once, and no other."""
    from lockstep.reference.ops import experts

    asked: list[int] = []

    class Listening:
        def __init__(self, stack):
            self.stack = stack

        def __getitem__(self, index):
            asked.append(index)
            return self.stack[index]

    x, routing, *stacks = draw(0, np.float32, experts=6)
    routing[..., [0, 3, 5]] = 0
    chosen = np.flatnonzero((routing != 0).any((0, 1))).tolist()
    experts(x, routing, *map(Listening, stacks), per_token=2)
    assert sorted(asked) == sorted(3 * chosen)


def test_whole_numbers_are_exact(backend):
    """By hand: large gates make swiglu a product, so that every sum is exact."""
    gate, up, down = np.full((1, 2, 2), 64.0), whole(0, 1, 2, 2), whole(1, 1, 2, 2)
    x = np.ones((1, 1, 2), np.float32)
    routing, gate = np.ones((1, 1, 1), np.float32), cast(gate, np.float32)
    found = backend.experts(x, routing, gate, up, down, per_token=1)
    assert_same_bits(found[0, 0], (down[0] @ (128 * up[0].sum(1))).astype(np.float32))
