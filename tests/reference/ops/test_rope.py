import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import normal, places, seeds, sizes
from tests.tolerances import assert_close, assert_same_bits

FAR = 2**24 + 1  # float32 has no such whole number


def turns(pairs: int) -> np.ndarray:
    """Give each pair its speed, as Qwen3 and Llama do, with a theta of 100."""
    return 100.0 ** (-np.arange(pairs) / pairs)


def by_loop(x, positions, frequencies, factor=1.0) -> np.ndarray:
    """Turn pair (j, j + D/2) of every head by position * frequency, in Python's floats.

    `frequencies` (D/2,) are everybody's, (B, D/2) those of each row.
    """
    frequencies = np.broadcast_to(frequencies, (len(x), x.shape[-1] // 2))
    out, half = np.empty(x.shape), x.shape[-1] // 2
    for b, h, l, j in np.ndindex(*x.shape[:-1], half):  # noqa: E741
        angle = int(positions[b, l]) * float(frequencies[b, j])
        first, second = float(x[b, h, l, j]), float(x[b, h, l, j + half])
        cos, sin = factor * math.cos(angle), factor * math.sin(angle)
        out[b, h, l, j] = first * cos - second * sin
        out[b, h, l, j + half] = second * cos + first * sin
    return out


@settings(max_examples=30)
@given(seed=seeds, batch=sizes, heads=sizes, length=sizes, pairs=sizes, ordered=st.booleans())
def test_follows_its_formula(precision, seed, batch, heads, length, pairs, ordered):
    """By loop: positions that count up from anywhere, and repeated and unsorted ones."""
    backend, dtype = precision
    x = normal(seed, batch, heads, length, 2 * pairs, dtype=dtype)
    positions = places(seed, batch, 1 if ordered else length)
    positions = positions + np.arange(length) if ordered else positions
    found = backend.rope(x, positions, turns(pairs), factor=1.0)
    exact = by_loop(x, positions, turns(pairs))
    assert_close(found, exact, kind="rotation", backend=backend)


def test_a_quarter_turn(backend):
    """By hand: 90 degrees take (1, 0) to (0, 1); the partner stands half a head away."""
    x = np.array([1, 2, 0, 0], np.float32).reshape(1, 1, 1, 4)
    found = backend.rope(x, np.array([[1]]), np.array([np.pi / 2, np.pi]), factor=1.0)
    assert_close(found.ravel(), [0, -2, 1, 0], kind="rotation", backend=backend)


@settings(max_examples=30)
@given(seed=seeds, m=st.integers(0, 50), n=st.integers(0, 50), shift=st.integers(0, 500))
def test_scores_know_only_the_distance(backend, seed, m, n, shift):
    """By law: <rope(q, m), rope(k, n)> depends on m - n alone."""
    q, k = normal(seed, 1, 1, 1, 8), normal(seed + 1, 1, 1, 1, 8)

    def score(one: int, other: int):
        left, right = (
            backend.rope(v, np.array([[p]]), turns(4), factor=1.0)
            for v, p in ((q, one), (k, other))
        )
        return np.append((left * right).sum(), np.float32(np.linalg.norm(q) * np.linalg.norm(k)))

    assert_close(score(m + shift, n + shift), score(m, n), kind="rotation", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, a=st.integers(0, 99), b=st.integers(0, 99))
def test_turns_add_up(backend, seed, a, b):
    """By law: turning by a, then by b, is turning by a + b."""
    x = normal(seed, 1, 2, 1, 8)
    there = backend.rope(x, np.array([[a]]), turns(4), factor=1.0)
    found = backend.rope(there, np.array([[b]]), turns(4), factor=1.0)
    exact = backend.rope(x, np.array([[a + b]]), turns(4), factor=1.0)
    assert_close(found, exact, kind="rotation", backend=backend)


def test_position_0_gives_everything_back(precision):
    """By law: bit for bit, in every dtype, the smallest and the largest numbers too."""
    backend, dtype = precision
    x = normal(0, 1, 2, 3, 8, dtype=dtype)
    tiny, huge = (np.array(bits, f"u{dtype.itemsize}").view(dtype) for bits in (1, huge_bits(x)))
    x[0, 0, 0, 0], x[0, 0, 0, 1] = tiny, huge
    assert_same_bits(backend.rope(x, np.zeros((1, 3), int), turns(4), factor=1.0), x)


def huge_bits(x) -> int:
    """Return the bits of the largest finite number: one below those of infinity."""
    infinity = np.array(np.inf).astype(x.dtype)
    return int(infinity.view(f"u{x.dtype.itemsize}")) - 1


def test_position_0_may_lose_the_sign_of_zero(backend):
    """By hand: -0 * 1 + 1 * 0 is 0, for the second of a pair; the first keeps its -0."""
    x = np.array([-0.0, 1, 2, -0.0], np.float32).reshape(1, 1, 1, 4)
    expected = np.array([-0.0, 1, 2, 0], np.float32).reshape(1, 1, 1, 4)
    assert_same_bits(backend.rope(x, np.array([[0]]), turns(2), factor=1.0), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(4))
def test_what_is_not_finite_spoils_its_pair(backend, bad, place):
    """By law: the pair of `bad` is not finite any more, the other pair is as ever."""
    x = normal(0, 1, 1, 1, 4)
    x[..., place] = bad
    out = backend.rope(x, np.array([[3]]), turns(2), factor=1.0).ravel()
    lost = [place, (place + 2) % 4]
    assert not np.isfinite(out[lost]).any()
    clean = by_loop(np.nan_to_num(x, posinf=0, neginf=0), np.array([[3]]), turns(2)).ravel()
    kept = np.delete(np.arange(4), lost)
    assert_close(out[kept], clean[kept], kind="rotation", backend=backend)


def test_infinity_at_position_0(backend):
    """By hand: inf * 0 is NaN, so infinity keeps its place and its partner is lost."""
    x = np.array([np.inf, 2], np.float32).reshape(1, 1, 1, 2)
    found = backend.rope(x, np.array([[0]]), turns(1), factor=1.0)
    assert_same_bits(found.ravel(), np.array([np.inf, np.nan], np.float32))


def test_overflow_is_quiet(backend):
    """By hand: an eighth of a turn makes (a, a) longer than float32 goes, without a warning."""
    x = np.full((1, 1, 1, 2), 3.4e38, np.float32)
    found = backend.rope(x, np.array([[1]]), np.array([np.pi / 4]), factor=1.0)
    assert found[0, 0, 0, 1] == np.inf


def test_far_positions(backend):
    """By loop: 2 ** 24 + 1. MLX counts in float32, where that is 2 ** 24, and says so."""
    x = normal(0, 1, 1, 1, 8)
    found = backend.rope(x, np.array([[FAR]]), turns(4), factor=1.0)
    if backend.name == "mlx":
        assert_same_bits(found, backend.rope(x, np.array([[FAR - 1]]), turns(4), factor=1.0))
    else:
        assert_close(found, by_loop(x, np.array([[FAR]]), turns(4)), kind="rotation")


def test_reversed_views(backend):
    """By law: positions may be a view of any strides."""
    x, positions = normal(0, 2, 1, 3, 4), np.array([[4, 5, 6], [0, 2, 1]])
    for view in (positions[:, ::-1], positions[::-1], positions[::-1, ::-1]):
        exact = by_loop(x, view, turns(2))
        assert_close(
            backend.rope(x, view, turns(2), factor=1.0), exact, kind="rotation", backend=backend
        )


def test_a_pair_that_hardly_turns(backend):
    """By hand: a frequency of 1e-150, below all that float32 has, is no rotation."""
    x = normal(0, 1, 1, 2, 4)
    found = backend.rope(x, np.array([[5, 3]]), np.array([1, 1e-150]), factor=1.0)
    assert_same_bits(found[..., [1, 3]], x[..., [1, 3]])


def test_no_tokens(precision):
    """By hand: nothing is turned into nothing."""
    backend, dtype = precision
    found = backend.rope(
        normal(0, 2, 3, 0, 4, dtype=dtype), np.zeros((2, 0), int), turns(2), factor=1.0
    )
    assert (found.shape, found.dtype) == ((2, 3, 0, 4), dtype)


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, heads=sizes, length=sizes, pairs=sizes, ordered=st.booleans())
def test_rows_with_frequencies_of_their_own(precision, seed, batch, heads, length, pairs, ordered):
    """By loop: each row is turned by its own frequencies, whatever the others have."""
    backend, dtype = precision
    x = normal(seed, batch, heads, length, 2 * pairs, dtype=dtype)
    positions = places(seed, batch, 1 if ordered else length)
    positions = positions + np.arange(length) if ordered else positions
    frequencies = turns(pairs) / np.random.default_rng(seed).uniform(1, 9, (batch, pairs))
    found = backend.rope(x, positions, frequencies, factor=1.0)
    assert_close(found, by_loop(x, positions, frequencies), kind="rotation", backend=backend)


@settings(max_examples=20)
@given(seed=seeds, length=sizes, factor=st.floats(0, 3))
def test_the_factor_stretches(precision, seed, length, factor):
    """By loop: cosines and sines are multiplied, so the result is."""
    backend, dtype = precision
    x, positions = normal(seed, 2, 2, length, 8, dtype=dtype), places(seed, 2, length)
    found = backend.rope(x, positions, turns(4), factor=factor)
    exact = by_loop(x, positions, turns(4), factor)
    assert_close(found, exact, kind="rotation", backend=backend)


def test_the_factor_is_not_rounded_to_half_precision(precision):
    """By hand: 1.2079 is no bfloat16, and 1 * 1.2079 at position 0 is its rounding."""
    backend, dtype = precision
    x = np.ones((1, 1, 1, 4), dtype)
    found = backend.rope(x * 100, np.array([[0]]), turns(2), factor=1.2079)
    expected = np.full(x.shape, 120.79).astype(dtype)
    if dtype == np.float64:
        np.testing.assert_allclose(found, expected, rtol=1e-15)
    elif dtype == np.float32:
        np.testing.assert_allclose(found, expected, rtol=2e-7)
    else:
        assert_same_bits(found, expected)
