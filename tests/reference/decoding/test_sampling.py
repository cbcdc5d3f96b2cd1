"""Both samplers, by hand, by law and by loop; and each against the other.

The namespaces `reference` and `fast` promise one result, so every test runs on both.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.fast.decoding import sampling as fast
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import sampling as reference
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

BELOW_1 = float(np.nextafter(1.0, 0.0))
SEVENTHS = np.log(np.array([1.0, 2.0, 4.0]))  # probabilities 1/7, 2/7, 4/7
TIES = np.array([1.0, 3.0, 3.0, 3.0, 0.0, 2.0])


@pytest.fixture(params=[reference, fast], ids=["reference", "fast"])
def sampling(request):
    return request.param


def options(temperature=1.0, **cuts) -> SamplingOptions:
    return SamplingOptions(temperature=temperature, **cuts)


def kept(sampling, logits, **cuts) -> set[int]:
    """Return the tokens that can be drawn: those in the middle of a step of the cumulative sum."""
    chosen = options(**cuts)
    logits = np.asarray(logits, np.float64)
    grid = np.linspace(0, 1, 701, endpoint=False)
    return {sampling.sample(logits, chosen, uniform=float(u)) for u in (*grid, BELOW_1)}


def by_loop(logits, chosen: SamplingOptions, uniform: float) -> int:
    """The rules of docs/decoding.md in plain Python, one token at a time."""
    if chosen.temperature == 0:
        return max(range(len(logits)), key=lambda i: (logits[i], -i))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: chosen.top_k or len(order)]
    heat = chosen.temperature
    weight = {i: float(np.exp(logits[i] / heat - logits[order[0]] / heat)) for i in order}
    total = np.sum([weight[i] for i in (order if chosen.top_k else sorted(order))])
    inside, mass = [], 0.0
    for i in order:
        fits = chosen.top_p == 1 or mass / total < chosen.top_p
        if fits and weight[i] >= chosen.min_p:
            inside.append(i)
        mass += weight[i]
    sums = {}
    for i in sorted(inside):
        sums[i] = sum(list(sums.values())[-1:]) + weight[i]
    return min(i for i in sums if uniform * sums[max(sums)] < sums[i])


@pytest.mark.parametrize(
    ("cuts", "tokens"),
    [
        ({}, {0, 1, 2}),
        ({"top_p": 0.5}, {2}),
        ({"top_p": 0.6}, {2, 1}),
        ({"top_p": 0.86}, {0, 1, 2}),
        ({"min_p": 0.5}, {1, 2}),
        ({"min_p": 0.51}, {2}),
        ({"min_p": 1.0}, {2}),
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 99}, {0, 1, 2}),
    ],
)
def test_cuts_of_three_tokens_by_hand(sampling, cuts, tokens):
    assert kept(sampling, SEVENTHS, **cuts) == tokens


@pytest.mark.parametrize(
    ("count", "mass", "left"),
    [(10, 0.8, 8), (10, 0.7, 7), (10, 0.1, 1), (6, 0.5, 3), (3, 1 / 3, 1), (7, 6 / 7, 6),
     (49, 3 / 49, 3), (10, 0.8 + 1e-15, 9), (10, 0.8 - 1e-15, 8)],
)  # fmt: skip
def test_top_p_at_the_border_by_hand(sampling, count, mass, left):
    """Of equal tokens as many stay as have that share, and the lowest of them."""
    found = sampling.probabilities(np.zeros(count), options(top_p=mass))
    assert np.flatnonzero(found).tolist() == [*range(left)]
    last = sampling.sample(np.zeros(count), options(top_p=mass), uniform=0.999999)
    assert last == left - 1


def test_fast_leaves_out_no_token_that_rounding_needs():
    """By law: where the likely tokens have all mass but 1e-17, sums decide as in the reference."""
    rng, kept = np.random.default_rng(0), set()
    for _ in range(300):
        logits = np.append(rng.normal(0, 1, rng.integers(2, 9)), [-10.0, -11.0])
        found = [
            one.probabilities(logits, options(0.3, top_p=BELOW_1)) for one in (reference, fast)
        ]
        np.testing.assert_array_equal(found[0] > 0, found[1] > 0)
        kept.add(bool(found[0][-2]))
    assert kept == {False, True}


@pytest.mark.parametrize("count", range(2, 50))
def test_every_share_of_equals_keeps_its_number(sampling, count):
    """By law: k of n equals reach k / n, whatever the rounding of k / n."""
    for left in range(1, count):
        found = sampling.probabilities(np.zeros(count), options(top_p=left / count))
        assert (found > 0).sum() == left


@pytest.mark.parametrize(
    ("count", "uniform", "token"),
    [(6, 0.5, 3), (6, float(np.nextafter(0.5, 0)), 2), (2, 0.5, 1), (12, 0.25, 3), (12, 0.75, 9),
     (24, 0.125, 3), (24, 0.875, 21), (10, 0.5, 5), (14, 0.5, 7), (49, 0.0, 0), (49, BELOW_1, 48)],
)  # fmt: skip
def test_drawing_at_the_border_by_hand(sampling, count, uniform, token):
    """The first token whose sum exceeds u: one whose sum is u to the bit does not."""
    assert sampling.sample(np.zeros(count), options(), uniform=uniform) == token


def test_min_p_at_the_border_by_hand(sampling):
    """A token that has the best one's probability times min-p stays, if it is so to the bit."""
    least = float(np.exp(-1.0))
    for more in range(12):
        logits = np.array([0.0, -1.0, *[-3.0] * more])
        assert kept(sampling, logits, min_p=least) == {0, 1}
        assert kept(sampling, logits, min_p=float(np.nextafter(least, 1))) == {0}


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.14, 0), (0.15, 1), (0.4, 1), (0.43, 2), (0.5, 2), (BELOW_1, 2)],
)
def test_drawing_by_hand(sampling, uniform, token):
    assert sampling.sample(SEVENTHS, options(), uniform=uniform) == token


def test_the_reference_tells_its_probabilities():
    found = reference.probabilities(SEVENTHS, options())
    np.testing.assert_allclose(found, [1 / 7, 2 / 7, 4 / 7], rtol=1e-15)
    cut = reference.probabilities(SEVENTHS, options(top_k=2))
    np.testing.assert_allclose(cut, [0, 1 / 3, 2 / 3], rtol=1e-15)


def test_the_lowest_of_equals_stays_first(sampling):
    assert sampling.greedy(TIES) == 1
    assert kept(sampling, TIES, top_k=2) == {1, 2}
    assert kept(sampling, np.zeros(4), top_p=0.25) == {0}
    assert kept(sampling, np.zeros(4), top_p=0.26) == {0, 1}
    assert kept(sampling, np.zeros(4), top_p=0.5) == {0, 1}
    assert kept(sampling, np.zeros(5), top_k=3, top_p=0.5) == {0, 1}
    assert kept(sampling, TIES, min_p=1.0) == {1, 2, 3}


def test_temperature_comes_before_top_p(sampling):
    """At T = 1 the best token has 4/7 of the mass, at T = 0.5 it has 16/21, at T = 2 under half."""
    assert kept(sampling, SEVENTHS, top_p=0.7) == {1, 2}
    assert kept(sampling, SEVENTHS, temperature=0.5, top_p=0.7) == {2}
    assert kept(sampling, SEVENTHS, temperature=2.0, top_p=0.8) == {0, 1, 2}


def test_top_k_comes_before_top_p(sampling):
    """Of the two best tokens the first has 2/3, so top-p 0.6 keeps it alone; of all it has 4/7."""
    assert kept(sampling, SEVENTHS, top_p=0.6) == {1, 2}
    assert kept(sampling, SEVENTHS, top_k=2, top_p=0.6) == {2}


def test_min_p_is_measured_against_the_best_after_temperature(sampling):
    assert kept(sampling, SEVENTHS, min_p=0.3) == {1, 2}
    assert kept(sampling, SEVENTHS, temperature=2.0, min_p=0.6) == {1, 2}
    assert kept(sampling, SEVENTHS, temperature=0.5, min_p=0.3) == {2}


def test_a_vocabulary_of_one_has_one_answer(sampling):
    for uniform in (0.0, 0.5, BELOW_1):
        assert sampling.sample(np.array([-3.0]), options(top_k=1, top_p=0.1), uniform=uniform) == 0
    assert sampling.greedy(np.array([-3.0])) == 0


def test_logits_that_exp_cannot_tell_apart_are_ranked_all_the_same(sampling):
    assert kept(sampling, [-1e-38, 0.0, 0.0], top_p=0.5) == {1, 2}
    assert sampling.greedy(np.array([-1e-38, 0.0, 0.0])) == 1


def test_minus_infinity_is_never_drawn(sampling):
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    assert kept(sampling, logits) == kept(sampling, logits, top_k=4) == {1, 3}
    assert sampling.sample(logits, options(), uniform=0.0) == 1
    assert sampling.sample(logits, options(), uniform=BELOW_1) == 3


def test_a_token_too_unlikely_for_float64_is_never_drawn(sampling):
    assert kept(sampling, [0.0, -1e4, 0.0, -1e4]) == {0, 2}
    assert kept(sampling, [-1e4, 0.0, -1e4]) == {1}


def test_huge_logits_do_not_overflow(sampling):
    assert kept(sampling, [3e38, -3e38, 3e38]) == {0, 2}
    cold = options(temperature=1e-6)
    assert sampling.sample(np.array([1.0, 1.1, 1.0]), cold, uniform=BELOW_1) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_logit_that_is_no_number_is_refused(sampling, bad, place, dtype):
    logits = np.array([1.0, 5.0, 2.0]).astype(dtype)
    logits[place] = bad
    for call in (
        lambda: sampling.greedy(logits),
        lambda: sampling.sample(logits, options(), uniform=0.5),
        lambda: sampling.sample(logits, options(0.0), uniform=0.5),
    ):
        with pytest.raises(InputError, match=f"logit {place} is {bad}, but should be finite"):
            call()


def test_nothing_to_choose_from_is_refused(sampling):
    for call in (
        lambda: sampling.greedy(np.full(3, -np.inf)),
        lambda: sampling.sample(np.full(3, -np.inf), options(), uniform=0.5),
    ):
        with pytest.raises(InputError, match="logit"):
            call()


@pytest.mark.parametrize("uniform", [-1e-9, 1.0, 2.0, float("nan"), float("inf")])
def test_a_uniform_out_of_range_is_refused(sampling, uniform):
    with pytest.raises(ValueError, match="uniform="):
        sampling.sample(SEVENTHS, options(), uniform=uniform)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_half_precision_is_widened_before_anything(sampling, dtype):
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(500) * 3).astype(dtype)
    for uniform in rng.random(50):
        cut = options(0.8, top_k=40, top_p=0.9)
        wide = sampling.sample(logits.astype(np.float64), cut, uniform=uniform)
        assert sampling.sample(logits, cut, uniform=uniform) == wide
    assert sampling.greedy(logits) == int(np.argmax(logits.astype(np.float64)))


values = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0, -np.inf]), st.floats(-30, 30, width=32)),
    min_size=1,
    max_size=12,
).filter(lambda found: max(found) > -np.inf)
choices = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 14),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)
draws = st.one_of(st.sampled_from([0.0, BELOW_1]), st.floats(0, 1, exclude_max=True))


@long
@settings(max_examples=800)
@given(values, choices, draws)
def test_reference_fast_and_the_loop_choose_one_token(found, chosen, uniform):
    logits = np.array(found)
    tokens = {each.sample(logits, chosen, uniform=uniform) for each in (reference, fast)}
    assert tokens == {by_loop(found, chosen, uniform)}


@long
@settings(max_examples=400)
@given(values, choices)
def test_top_p_keeps_the_smallest_set_that_reaches_it(found, chosen):
    assume(chosen.temperature > 0)
    logits = np.array(found)
    free = SamplingOptions(chosen.temperature, chosen.top_k)
    before = reference.probabilities(logits, free)
    cut = SamplingOptions(chosen.temperature, chosen.top_k, chosen.top_p)
    inside = reference.probabilities(logits, cut) > 0
    mass = before[inside].sum()
    assert inside.any()
    assert mass >= chosen.top_p - 1e-12
    assert mass - before[inside].min() < chosen.top_p + 1e-12
    if (~inside).any():
        assert before[~inside].max() <= before[inside].min() + 1e-15


@long
@settings(max_examples=500)
@given(values, choices)
def test_probabilities_are_a_distribution_of_what_is_kept(found, chosen):
    assume(chosen.temperature > 0)
    probs = reference.probabilities(np.array(found), chosen)
    assert abs(probs.sum() - 1) < 1e-12
    assert probs[int(np.argmax(found))] == probs.max()
    best = probs[probs > 0].max()
    assert (probs[probs > 0] >= chosen.min_p * best * (1 - 1e-12)).all()
    assert (probs > 0).sum() <= (chosen.top_k or len(found))


@long
def test_frequencies_follow_the_probabilities(sampling):
    """A G-test: 20,000 draws from a seed, against the distribution itself, at a chance of 1e-4."""
    logits = np.array([0.0, 1.0, 0.5, -1.0, 2.0, -2.0])
    chosen, count = options(0.9, top_p=0.97), 20_000
    probs = reference.probabilities(logits, chosen)
    drawn = [sampling.sample(logits, chosen, uniform=u) for u in itertools.islice(seeded(1), count)]
    seen = np.bincount(drawn, minlength=len(logits))
    assert (seen[probs == 0] == 0).all() and (probs == 0).any()
    seen, expected = seen[probs > 0], probs[probs > 0] * count
    statistic = 2 * float(np.sum(seen * np.log(seen / expected)))
    assert statistic < 23.5  # chi squared with 4 degrees of freedom, 0.9999
