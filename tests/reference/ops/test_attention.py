import math
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference import ops
from tests.draws import cast, normal, seeds, sizes
from tests.tolerances import assert_close, assert_same_bits

POLICIES = ["uniform", "zero", "nan"]
NAN, INF = np.nan, np.inf


def by_loop(queries, keys, values, seen, scale: float, policy: str) -> np.ndarray:
    """Attend key by key in Python's floats."""
    share = queries.shape[1] // keys.shape[1]
    out = np.zeros((*queries.shape[:3], values.shape[-1]))
    queries, keys, values = (part.astype(np.float64) for part in (queries, keys, values))
    for b, h, i in np.ndindex(out.shape[:3]):
        places, group = np.flatnonzero(seen[b, 0, i]).tolist(), h // share
        powers = [math.exp(scale * queries[b, h, i].dot(keys[b, group, j])) for j in places]
        if not places:  # the policy weighs all keys
            weight = {"uniform": 1 / keys.shape[2], "zero": 0, "nan": NAN}[policy]
            places, powers = range(keys.shape[2]), [weight] * keys.shape[2]
        total = math.fsum(powers) if seen[b, 0, i].any() else 1
        for j, power in zip(places, powers, strict=True):
            out[b, h, i] += power / total * values[b, group, j]
    return out


def attend(backend, parts, query, key, *, window=None, policy="uniform", scale=0.5):
    mask = backend.causal_mask(query, key, window=window)
    return backend.attention(*parts, mask, scale=scale, masked_row=policy)


def draw(seed: int, *, heads=4, groups=2, new=3, held=5, width=4, dtype=np.float32, batch=2):
    queries = normal(seed, batch, heads, new, width, dtype=dtype)
    keys, values = (normal(seed + i, batch, groups, held, width, dtype=dtype) for i in (1, 2))
    return queries, keys, values


def in_order(new: int, held: int, batch: int = 2):
    """Give the positions of the last `new` of `held` tokens, and of all."""
    key = np.tile(np.arange(held), (batch, 1))
    return key[:, held - new :], key


@settings(max_examples=40)
@given(
    seed=seeds,
    groups=sizes,
    share=sizes,
    new=sizes,
    held=sizes,
    width=sizes,
    window=st.sampled_from([None, 1, 2, 9]),
    policy=st.sampled_from(POLICIES),
)
def test_any_positions(precision, seed, groups, share, new, held, width, window, policy):
    """By loop: repeated, unsorted and padded positions, blind rows, one and all key heads."""
    backend, dtype = precision
    sizes = {"groups": groups, "heads": groups * share, "new": new, "held": held, "width": width}
    parts = draw(seed, **sizes, dtype=dtype)
    rng = np.random.default_rng(seed)
    query, key = rng.integers(0, 6, (2, new)), rng.integers(-1, 6, (2, held))
    found = attend(backend, parts, query, key, window=window, policy=policy)
    seen = backend.seen(backend.causal_mask(query, key, window=window))
    exact = by_loop(*parts, seen, 0.5, policy)
    assert_close(found, exact, kind="rounded thrice", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, new=sizes, past=st.integers(0, 4), window=st.sampled_from([None, 1, 3, 99]))
def test_a_step_in_order(precision, seed, new, past, window):
    """By loop: prefill and decode, which `fast` hands to its kernels without a mask."""
    backend, dtype = precision
    parts = draw(seed, new=new, held=past + new, dtype=dtype)
    query, key = in_order(new, past + new)
    found = attend(backend, parts, query, key, window=window)
    seen = backend.seen(backend.causal_mask(query, key, window=window))
    exact = by_loop(*parts, seen, 0.5, "uniform")
    assert_close(found, exact, kind="rounded thrice", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, window=st.sampled_from([None, 2]))
def test_is_its_three_parts(backend, seed, window):
    """By law: scores, softmax, context."""
    queries, keys, values = draw(seed)
    mask = backend.causal_mask(*in_order(3, 5), window=window)
    scores = backend.attention_scores(queries, keys, scale=0.5)
    probs = backend.softmax(scores, mask, masked_row="zero")
    parts = backend.attention_context(probs, values, mask)
    found = backend.attention(queries, keys, values, mask, scale=0.5, masked_row="zero")
    assert_close(found, parts, kind="sum")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("few", [1, 3, 64])
def test_some_queries_at_a_time_see_the_same_keys(few, window, policy, monkeypatch):
    """By loop: tokens in order and not, rows that see no key, NaN in padding."""
    monkeypatch.setattr(sys.modules["lockstep.reference.ops.attention"], "FEW", few)
    queries, keys, values = draw(0, new=7, held=9, batch=3)
    key = np.array([[*range(9)], [*range(-1, 8)], [5, 3, 8, 8, 2, 7, 6, 4, 1]])
    query = np.array([[*range(2, 9)], [*range(1, 8)], [2, 0, 3, 1, 9, 4, 0]])
    keys[1, :, 0], values[1, :, 0] = NAN, NAN
    seen = ops.causal_mask(query, key, window=window)
    found = ops.attention(queries, keys, values, seen, scale=0.5, masked_row=policy)
    exact = by_loop(queries, keys, values, seen, 0.5, policy)
    assert_close(found, exact, kind="rounded thrice")


def test_scores_of_a_long_prompt_never_stand_in_memory_at_once():
    """By hand: all scores of 2,048 tokens would be 32 MB, those of 64 queries 1 MB."""
    length = 2048
    queries, keys, values = draw(0, heads=2, groups=1, new=length, held=length, batch=1)
    seen = ops.causal_mask(*in_order(length, length, 1), window=None)
    tracemalloc.start()
    try:
        ops.attention(queries, keys, values, seen, scale=0.5, masked_row="uniform")
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


@settings(max_examples=20)
@given(seed=seeds, token=st.integers(1, 4))
def test_the_future_cannot_be_seen(precision, seed, token):
    """By law: another token t changes no bit of what tokens before t get."""
    backend, dtype = precision
    queries, keys, values = draw(seed, new=5, dtype=dtype)
    before = attend(backend, (queries, keys, values), *in_order(5, 5))[:, :, :token]
    keys[:, :, token:], values[:, :, token:] = 3, -7
    after = attend(backend, (queries, keys, values), *in_order(5, 5))[:, :, :token]
    assert_same_bits(after, before)


@settings(max_examples=20)
@given(seed=seeds)
def test_places_in_the_cache_do_not_matter(backend, seed):
    """By law: keys that change places together with their positions change nothing."""
    queries, keys, values = draw(seed)
    query, key = in_order(3, 5)
    order = np.random.default_rng(seed).permutation(5)
    exact = attend(backend, (queries, keys, values), query, key)
    moved = (queries, keys[:, :, order], values[:, :, order])
    assert_close(attend(backend, moved, query, key[:, order]), exact, kind="sum")


@settings(max_examples=20)
@given(seed=seeds, groups=sizes, share=sizes)
def test_shared_heads_are_repeated_heads(backend, seed, groups, share):
    """By law: grouped queries are as if every query head had its own copy."""
    queries, keys, values = draw(seed, heads=groups * share, groups=groups)
    copies = (queries, keys.repeat(share, axis=1), values.repeat(share, axis=1))
    exact = attend(backend, copies, *in_order(3, 5))
    assert_close(attend(backend, (queries, keys, values), *in_order(3, 5)), exact, kind="sum")


def test_window_1_sees_itself_alone(precision):
    """By hand: each token gets its own value back, bit for bit."""
    backend, dtype = precision
    queries, keys, values = draw(0, heads=2, groups=2, new=4, held=4, dtype=dtype)
    found = attend(backend, (queries, keys, values), *in_order(4, 4), window=1)
    assert_same_bits(found, values)


def test_the_first_token_sees_itself_alone(precision):
    """By hand: the value of its own group."""
    backend, dtype = precision
    queries, keys, values = draw(0, new=1, held=1, dtype=dtype)
    found = attend(backend, (queries, keys, values), *in_order(1, 1))
    assert_same_bits(found, values.repeat(2, axis=1))


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_hidden_value_that_is_not_finite(backend, bad):
    """By hand: padding holds `bad`. The reference leaves it out, `fast` multiplies it by 0: NaN."""
    queries, keys, values = draw(0, heads=1, groups=1, new=1, held=3, batch=1)
    query, key = np.array([[1]]), np.array([[0, 1, -1]])
    clean = attend(backend, (queries, keys, values), query, key)
    values[:, :, 2] = bad
    found = attend(backend, (queries, keys, values), query, key)
    spoilt = np.full_like(clean, NAN)
    assert_same_bits(found, clean if backend.name == "reference" else spoilt)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_hidden_key_that_is_not_finite(backend, bad):
    """By law: its score is left out, so no bit changes, on any backend."""
    queries, keys, values = draw(0, heads=1, groups=1, new=1, held=3, batch=1)
    query, key = np.array([[1]]), np.array([[0, 1, -1]])
    clean = attend(backend, (queries, keys, values), query, key)
    keys[:, :, 2] = bad
    assert_same_bits(attend(backend, (queries, keys, values), query, key), clean)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_keys_give_zeros(precision, policy):
    """By hand: a sum over no keys, whatever the policy."""
    backend, dtype = precision
    parts = draw(0, new=2, held=0, dtype=dtype)
    found = attend(backend, parts, np.zeros((2, 2), int), np.zeros((2, 0), int), policy=policy)
    assert_same_bits(found, np.zeros((2, 4, 2, 4), dtype))


@pytest.mark.parametrize("held", [0, 3])
def test_no_queries(precision, held):
    """By hand: nothing asks, nothing answers."""
    backend, dtype = precision
    parts = draw(0, new=0, held=held, dtype=dtype)
    found = attend(backend, parts, *in_order(0, held))
    assert (found.shape, found.dtype) == ((2, 4, 0, 4), dtype)


def test_where_a_score_overflows(backend):
    """By hand: 300 * 300 * 4 has no float16. Only cpu keeps scores in float32, and says so."""
    parts = draw(0, heads=1, groups=1, new=1, held=1, dtype=np.float16, batch=1)
    parts = tuple(np.full_like(part, 300) for part in parts)
    found = attend(backend, parts, *in_order(1, 1, 1), scale=1.0)
    answer = 300 if backend.name == "cpu" else NAN
    assert_same_bits(found, cast(np.full((1, 1, 1, 4), answer), np.float16))


def test_another_policy_is_refused(backend):
    """By law: a spelling mistake is no policy, even where no row is blind."""
    with pytest.raises(ValueError, match="masked_row='None', but should be one of"):
        attend(backend, draw(0), *in_order(3, 5), policy="None")
