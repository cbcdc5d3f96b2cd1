import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import cast, normal, seeds, sizes
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits


def by_loop(logits, per_token: int, normalize: bool) -> np.ndarray:
    """Choose in Python's floats, one token at a time; the lowest id wins a tie."""
    out = np.zeros(logits.shape)
    for place in np.ndindex(logits.shape[:-1]):
        row = logits[place].astype(np.float64).tolist()
        powers = [math.exp(value - max(row)) for value in row]
        probs = [power / math.fsum(powers) for power in powers]
        best = sorted(range(len(row)), key=lambda expert: (-probs[expert], expert))[:per_token]
        total = math.fsum(probs[expert] for expert in best) if normalize else 1.0
        for expert in best:
            out[(*place, expert)] = probs[expert] / total
    return out


def distinct(seed: int, *shape: int, dtype) -> np.ndarray:
    """Draw rows of numbers that no rounding can bring together: eighths in random order."""
    rng = np.random.default_rng(seed)
    return cast(rng.permuted(np.broadcast_to(np.arange(shape[-1]) / 8, shape), axis=-1), dtype)


@settings(max_examples=30)
@given(seed=seeds, length=sizes, experts=st.integers(1, 9), some=sizes, normalize=st.booleans())
def test_follows_its_formula(precision, seed, length, experts, some, normalize):
    """By loop."""
    backend, dtype = precision
    logits, per_token = distinct(seed, 2, length, experts, dtype=dtype), min(some, experts)
    found = backend.top_k_routing(logits, per_token=per_token, normalize=normalize)
    exact = by_loop(logits, per_token, normalize)
    assert_close(found, exact, kind="pointwise", backend=backend)
    assert ((found != 0) == (exact != 0)).all()


@pytest.mark.parametrize("logits, per_token, answer", [
    ([0, 0, 0, 0], 2, [0.5, 0.5, 0, 0]),
    ([0, 1, 1, 1], 2, [0, 0.5, 0.5, 0]),
    ([1, 0, 0, 1], 3, None),
    ([-1, 5, 5, 5, 5, 5], 4, [0, 0.25, 0.25, 0.25, 0.25, 0]),
])  # fmt: skip
def test_ties_go_to_the_lowest_id(precision, logits, per_token, answer):
    """By hand: equal logits have equal probabilities."""
    backend, dtype = precision
    found = backend.top_k_routing(cast([[logits]], dtype), per_token=per_token, normalize=True)
    if answer is None:
        assert (found[0, 0] != 0).tolist() == [True, True, False, True]
    else:
        assert_close(found, [[answer]], kind="pointwise", backend=backend)


def test_all_experts(precision):
    """By law: with every expert chosen it is a softmax, and to normalise changes nothing."""
    backend, dtype = precision
    logits = distinct(0, 2, 3, 5, dtype=dtype)
    plain, normed = (
        backend.top_k_routing(logits, per_token=5, normalize=normalize)
        for normalize in (False, True)
    )
    assert_close(normed, plain.astype(np.float64), kind="rounded twice")
    assert_close(plain, by_loop(logits, 5, False), kind="pointwise", backend=backend)


@settings(max_examples=20)
@given(seed=seeds)
def test_normalised_is_a_softmax_of_the_chosen(backend, seed):
    """By law: what the others' logits are does not matter, as long as they are not chosen."""
    logits = distinct(seed, 1, 3, 8, dtype=np.float32)
    found = backend.top_k_routing(logits, per_token=3, normalize=True)
    lower = np.where(found != 0, logits, logits - 50)
    assert_close(backend.top_k_routing(lower, per_token=3, normalize=True), found, kind="sum")


def test_is_chosen_in_float32(backend):
    """By hand: logits this large are half apart in bfloat16, and exact in float32."""
    logits = cast([[[100.0, 100.5, 101.0, 100.5, -1e4, 101.0]]], DTYPES["bfloat16"])
    found = backend.top_k_routing(logits, per_token=3, normalize=False)
    assert (found[0, 0] != 0).tolist() == [False, True, True, False, False, True]


def test_what_underflows_weighs_nothing(backend):
    """By hand: exp(-200) is no float32; nothing is divided by zero."""
    logits = np.array([[[0, -200, -300]]], np.float32)
    found = backend.top_k_routing(logits, per_token=2, normalize=True)
    assert_same_bits(found, np.array([[[1, 0, 0]]], np.float32))


@pytest.mark.parametrize("normalize", [False, True])
def test_nan_spoils_its_token_alone(precision, normalize):
    """By hand: the first experts get NaN, as many as a token has, so that it shows."""
    backend, dtype = precision
    logits = distinct(0, 1, 2, 4, dtype=dtype)
    before = backend.top_k_routing(logits, per_token=2, normalize=normalize)
    logits[0, 1, 3] = np.nan
    found = backend.top_k_routing(logits, per_token=2, normalize=normalize)
    assert np.isnan(found[0, 1]).tolist() == [True, True, False, False]
    assert_same_bits(found[0, 0], before[0, 0])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("logits", [[0, 1, 2, np.inf], [np.inf, np.inf, 0, 1], [-np.inf] * 4])
def test_infinities_give_nan_to_the_first_experts(backend, logits, normalize):
    """By hand: inf - inf is NaN, whoever has it; no probability can be compared then."""
    row = np.array([[logits]], np.float32)
    found = backend.top_k_routing(row, per_token=2, normalize=normalize)
    assert_same_bits(found, np.array([[[np.nan, np.nan, 0, 0]]], np.float32))


def test_minus_infinity_weighs_nothing(backend):
    """By hand: exp(-inf) is 0, and the only other expert weighs 1."""
    row = np.array([[[-np.inf, 0, -np.inf]]], np.float32)
    found = backend.top_k_routing(row, per_token=2, normalize=True)
    assert_same_bits(found, np.array([[[0, 1, 0]]], np.float32))


def test_no_tokens(precision):
    """By hand: nobody chooses nothing."""
    backend, dtype = precision
    found = backend.top_k_routing(normal(0, 2, 0, 4, dtype=dtype), per_token=2, normalize=True)
    assert (found.shape, found.dtype) == ((2, 0, 4), dtype)


@pytest.mark.parametrize("per_token", [0, 5])
def test_too_many_are_refused(backend, per_token):
    """By law: one at least, and no more than there are."""
    with pytest.raises(ValueError, match=f"{per_token} of 4 experts"):
        backend.top_k_routing(normal(0, 1, 1, 4), per_token=per_token, normalize=True)
