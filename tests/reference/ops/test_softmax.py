import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.ops import softmax as reference_softmax
from tests.draws import cast, normal, seeds, sizes, whole
from tests.tolerances import assert_close, assert_same_bits

POLICIES = ["uniform", "zero", "nan"]
INF, NAN = np.inf, np.nan


def by_loop(scores, seen, blind: float) -> np.ndarray:
    """Weigh the seen keys of every row in Python's floats; `blind` stands where there are none."""
    out = np.zeros(scores.shape)
    for b, h, i in np.ndindex(scores.shape[:3]):
        places = np.flatnonzero(seen[b, 0, i])
        powers = [math.exp(float(scores[b, h, i, j])) for j in places]
        out[b, h, i, places] = [power / math.fsum(powers) for power in powers]
        if not len(places):
            out[b, h, i] = blind
    return out


def softmax(backend, row, *, seen=None, masked_row="uniform") -> np.ndarray:
    """Take one row of float32 scores, of which the first `seen` keys can be seen."""
    row = np.array(row, np.float32)
    last = len(row) - 1 if seen is None else seen - 1
    mask = backend.causal_mask(np.array([[last]]), np.arange(len(row))[None], window=None)
    return backend.softmax(row[None, None, None], mask, masked_row=masked_row)[0, 0, 0]


@settings(max_examples=30)
@given(seed=seeds, heads=sizes, new=sizes, held=sizes, policy=st.sampled_from(POLICIES))
def test_follows_its_formula(precision, seed, heads, new, held, policy):
    """By loop: any mask, with rows that see nothing, under each policy."""
    backend, dtype = precision
    rng = np.random.default_rng(seed)
    query, key = rng.integers(0, 6, (2, new)), rng.integers(-1, 6, (2, held))
    mask = backend.causal_mask(query, key, window=3)
    scores = normal(seed, 2, heads, new, held, dtype=dtype)
    found = backend.softmax(scores, mask, masked_row=policy)
    blind = {"uniform": 1 / held, "zero": 0, "nan": NAN}[policy]
    exact = by_loop(scores, backend.seen(mask), blind)
    assert_close(found, exact, kind="sum")


def test_powers_of_two(precision):
    """By hand: log 1, log 2, log 5 weigh 1/8, 2/8, 5/8."""
    backend, dtype = precision
    place = np.arange(3)[None]
    mask = backend.causal_mask(place[:, 2:], place, window=None)
    scores = cast(np.log([1, 2, 5]), dtype).reshape(1, 1, 1, 3)
    found = backend.softmax(scores, mask, masked_row="zero")
    assert_close(found.ravel(), [0.125, 0.25, 0.625], kind="rounded twice", backend=backend)


@settings(max_examples=30)
@given(seed=seeds, held=st.integers(1, 9), shift=st.integers(-(2**20), 2**20))
def test_a_shift_changes_nothing(backend, seed, held, shift):
    """By law: bit for bit, where the shift itself is exact."""
    row = whole(seed, held, bound=20)
    assert_same_bits(softmax(backend, row + shift), softmax(backend, row))


@settings(max_examples=30)
@given(seed=seeds, held=st.integers(1, 30))
def test_weights_sum_to_one(backend, seed, held):
    """By law."""
    found = softmax(backend, normal(seed, held) * 5)
    assert_close(found.sum(), 1, kind="sum")
    assert (found >= 0).all()


@settings(max_examples=30)
@given(seed=seeds, held=st.integers(2, 9))
def test_ratios_are_exponentials_of_differences(backend, seed, held):
    """By law: p[i] / p[0] = exp(s[i] - s[0])."""
    row = normal(seed, held)
    found = softmax(backend, row)
    wide = row.astype(np.float64)
    assert_close(found / found[0], np.exp(wide - wide[0]), kind="sum")


@pytest.mark.parametrize("hidden", [NAN, INF, -INF, 3e38, -3e38])
def test_what_a_masked_key_holds_cannot_matter(backend, hidden):
    """By law: bit for bit the same as without that key, and its own weight is 0."""
    found = softmax(backend, [0, 1, hidden], seen=2)
    assert_same_bits(found, np.append(softmax(backend, [0, 1]), np.float32(0)))


EDGES = [  # scores, weights
    ([1e4, 0, -1e4], [1, 0, 0]),
    ([88.8, 88.8], [0.5, 0.5]),
    ([1e30, 1e30, 0], [0.5, 0.5, 0]),
    ([3e38, -3e38], [1, 0]),  # their difference overflows
    ([-3e38, -3e38], [0.5, 0.5]),  # seen, though lower than any sentinel
    ([-5e4, -INF], [1, 0]),
    ([0, -INF], [1, 0]),
    ([-0.0, 0.0], [0.5, 0.5]),
    ([7], [1]),
    ([INF, 0], [NAN, NAN]),
    ([INF, INF], [NAN, NAN]),
    ([-INF, -INF], [NAN, NAN]),
    ([NAN, 0], [NAN, NAN]),
    ([1, 2, NAN], [NAN, NAN, NAN]),
    ([NAN, INF, -INF], [NAN, NAN, NAN]),
]


@pytest.mark.parametrize("row, weights", EDGES)
@pytest.mark.parametrize("masked", [0, 1])
def test_edges(backend, row, weights, masked):
    """By hand: large scores are exact; +inf, NaN, and -inf alone make the whole row NaN."""
    found = softmax(backend, row + [5] * masked, seen=len(row))
    rest = NAN if np.isnan(weights).any() else 0
    assert_same_bits(found, np.array(weights + [rest] * masked, np.float32))


@pytest.mark.parametrize("policy, weight", [("uniform", 0.25), ("zero", 0), ("nan", NAN)])
@pytest.mark.parametrize("held", [0, NAN, INF, -INF])
def test_a_row_that_sees_nothing_follows_its_policy(precision, policy, weight, held):
    """By hand: whatever its keys hold; the row below it sees one key and is as ever."""
    backend, dtype = precision
    mask = backend.causal_mask(np.array([[0, 1]]), np.array([[1, 2, 3, -1]]), window=None)
    scores = cast(np.full((1, 1, 2, 4), held), dtype)
    scores[0, 0, 1] = 0
    found = backend.softmax(scores, mask, masked_row=policy)
    expected = cast([[weight] * 4, [1, 0, 0, 0]], dtype)
    assert_same_bits(found[0, 0], expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("new, held", [(2, 0), (0, 3), (0, 0)])
def test_no_keys_and_no_queries(precision, policy, new, held):
    """By hand: (.., 0) is weighed without a warning."""
    backend, dtype = precision
    mask = backend.causal_mask(np.zeros((1, new), int), np.zeros((1, held), int), window=None)
    scores = normal(0, 1, 2, new, held, dtype=dtype)
    found = backend.softmax(scores, mask, masked_row=policy)
    assert (found.shape, found.dtype) == ((1, 2, new, held), dtype)


def test_another_policy_is_refused(backend):
    """By law: a spelling mistake is no policy."""
    with pytest.raises(ValueError, match="masked_row='Zero', but should be one of"):
        softmax(backend, [0, 1], masked_row="Zero")


def test_the_scores_are_left_alone(backend):
    """By law: an operation does not write to what it is given."""
    row = np.array([[[[1, 2, 3]]]], np.float32)
    mask = backend.causal_mask(np.array([[1]]), np.array([[0, 1, 2]]), window=None)
    backend.softmax(row, mask, masked_row="zero")
    assert row.ravel().tolist() == [1, 2, 3]


def test_scores_of_one_axis_are_a_row():
    """By hand: 1/4 and 3/4, and one that is not seen; so is a row of any array."""
    row, seen = np.log(np.array([1, 3, 9])), np.array([True, True, False])
    found = reference_softmax(row, seen, masked_row="zero")
    np.testing.assert_allclose(found, [0.25, 0.75, 0], rtol=1e-15)
    assert_same_bits(reference_softmax(row[None], seen, masked_row="zero")[0], found)
