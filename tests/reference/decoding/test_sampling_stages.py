"""Bias, penalties and typical sampling, by hand and by loop, in both packages."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.fast.decoding import sampling as fast
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import sampling as reference
from lockstep.reference.scheduling.sampling_options import SamplingOptions

FIVE = np.log([0.5, 0.2, 0.15, 0.1, 0.05])  # entropy 1.3331
WARM = {"temperature": 1.0}


@pytest.fixture(params=[reference, fast], ids=["reference", "fast"])
def sampling(request):
    return request.param


def kept(sampling, logits, seen=(), **options) -> set[int]:
    probs = sampling.probabilities(np.asarray(logits), SamplingOptions(**WARM | options), seen)
    return set(np.flatnonzero(probs).tolist())


def logits_after(sampling, logits, seen=(), **options):
    """Return the logits that a distribution speaks of, up to a constant: the first is 0."""
    found = sampling.probabilities(np.asarray(logits), SamplingOptions(**WARM | options), seen)
    return np.log(found / found[0])


@pytest.mark.parametrize(
    ("mass", "tokens"),
    [(0.1, {1}), (0.199, {1}), (0.201, {1, 2}), (0.3, {1, 2}), (0.34, {1, 2}), (0.36, {0, 1, 2}),
     (0.5, {0, 1, 2}), (0.9, {0, 1, 2, 3}), (0.96, {0, 1, 2, 3, 4}), (1.0, {0, 1, 2, 3, 4})],
)  # fmt: skip
def test_typical_by_hand(sampling, mass, tokens):
    """Their distances from the entropy are .640, .276, .564, .970 and 1.663."""
    assert kept(sampling, FIVE, typical_p=mass) == tokens


def test_typical_may_drop_the_best_and_is_not_asked_when_greedy(sampling):
    logits = np.append(np.log(0.4), np.full(60, np.log(0.01)))
    assert 0 not in kept(sampling, logits, typical_p=0.3)
    cold = SamplingOptions(typical_p=0.3)
    assert sampling.sample(logits, cold, uniform=0.0) == 0


def test_typical_takes_the_lowest_of_equals(sampling):
    assert kept(sampling, np.zeros(4), typical_p=0.25) == {0}
    assert kept(sampling, np.zeros(4), typical_p=0.26) == {0, 1}
    assert kept(sampling, np.zeros(4), typical_p=1e-300) == {0}


def test_typical_with_tokens_that_are_impossible(sampling):
    """Tokens at -inf are no candidates; one whose probability underflows is the least typical."""
    assert kept(sampling, [*FIVE, -np.inf], typical_p=0.3) == {1, 2}
    assert kept(sampling, [*FIVE, -1e5], typical_p=0.97) == {0, 1, 2, 3, 4}


def test_typical_comes_last(sampling):
    """Of the best two, 5/7 and 2/7, the first is nearer to the entropy .598."""
    assert kept(sampling, FIVE, typical_p=0.5) == {0, 1, 2}
    assert kept(sampling, FIVE, typical_p=0.5, top_k=2) == {0}


def test_repetition_by_hand(sampling):
    """A logit above 0 is divided, one below 0 multiplied, 0 stays; each token once."""
    found = logits_after(sampling, [0.0, 2.0, -2.0, 5.0], [1, 2, 1, 0], repetition_penalty=1.2)
    np.testing.assert_allclose(found, [0, 2 / 1.2, -2.4, 5], rtol=1e-12)


def test_frequency_and_presence_by_hand(sampling):
    seen = [1, 1, 1, 2]
    found = logits_after(sampling, [0.0, 2.0, -2.0], seen, frequency_penalty=0.5)
    np.testing.assert_allclose(found, [0, 0.5, -2.5], rtol=1e-12, atol=1e-12)
    found = logits_after(sampling, [0.0, 2.0, -2.0], seen, presence_penalty=0.5)
    np.testing.assert_allclose(found, [0, 1.5, -2.5], rtol=1e-12)
    found = logits_after(sampling, [0.0, 2.0, -2.0], seen, presence_penalty=-0.5)
    np.testing.assert_allclose(found, [0, 2.5, -1.5], rtol=1e-12)


def test_the_window_is_the_last_tokens(sampling):
    cut = {"presence_penalty": 1.0, "penalty_window": 2}
    found = logits_after(sampling, np.zeros(4), [1, 2, 3, 3], **cut)
    np.testing.assert_allclose(found, [0, 0, 0, -1], atol=1e-12)
    found = logits_after(sampling, np.zeros(4), [1, 2, 3], presence_penalty=1.0)
    np.testing.assert_allclose(found, [0, -1, -1, -1], atol=1e-12)


def test_bias_comes_before_the_penalties(sampling):
    """1 + 1 is divided by 2; a penalty before the bias would leave 1.5."""
    options = {"logit_bias": ((1, 1.0),), "repetition_penalty": 2.0}
    np.testing.assert_allclose(logits_after(sampling, [0.0, 1.0], [1], **options), [0, 1.0])


def test_penalties_and_bias_change_the_greedy_choice(sampling):
    logits = np.array([3.0, 2.9, 1.0], np.float32)
    for options, token in (
        ({}, 0),
        ({"repetition_penalty": 1.1}, 1),
        ({"frequency_penalty": 0.2}, 1),
        ({"presence_penalty": 0.2}, 1),
        ({"logit_bias": ((2, 5.0),)}, 2),
        ({"logit_bias": ((0, -math.inf),)}, 1),
    ):
        assert sampling.sample(logits, SamplingOptions(**options), uniform=0.0, seen=[0]) == token
    assert logits.tolist() == np.array([3.0, 2.9, 1.0], np.float32).tolist()


def test_a_banned_token_is_never_drawn(sampling):
    assert kept(sampling, [9.0, 0.0, 1.0], logit_bias=((0, -math.inf),)) == {1, 2}


def test_all_tokens_banned_is_refused(sampling):
    ban = SamplingOptions(1.0, logit_bias=((0, -math.inf), (1, -math.inf)))
    with pytest.raises(InputError, match="logit"):
        sampling.sample(np.zeros(2), ban, uniform=0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bias_does_not_hide_a_logit_that_is_no_number(sampling, bad):
    ban = SamplingOptions(1.0, logit_bias=((1, -math.inf),))
    with pytest.raises(InputError, match=f"logit 1 is {bad}"):
        sampling.sample(np.array([0.0, bad]), ban, uniform=0.5)


def test_tokens_beyond_the_vocabulary_are_refused(sampling):
    for options, seen, where in (
        ({"logit_bias": ((3, 1.0),)}, (), "logit_bias"),
        ({"presence_penalty": 1.0}, (0, 3), "earlier tokens"),
        ({"presence_penalty": 1.0}, (-1,), "earlier tokens"),
    ):
        with pytest.raises(InputError, match=rf"should be 0\.\.2 \({where}\)"):
            sampling.sample(np.zeros(3), SamplingOptions(**options), uniform=0.5, seen=seen)


def test_a_penalty_of_nothing_seen_is_nothing(sampling):
    options = {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 1.0}
    np.testing.assert_allclose(logits_after(sampling, [0.0, 3.0], (), **options), [0, 3])


@settings(max_examples=300)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8),
    st.lists(st.integers(0, 7), max_size=30),
    st.sampled_from([0.5, 1.0, 1.3]),
    *[st.sampled_from([-0.7, 0.0, 0.4])] * 2,
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_penalties_by_loop(logits, seen, repetition, frequency, presence, window):
    """By loop: one token at a time, in plain Python."""
    seen = [token for token in seen if token < len(logits)]
    options = SamplingOptions(
        1.0, repetition_penalty=repetition, frequency_penalty=frequency,
        presence_penalty=presence, penalty_window=window,
    )  # fmt: skip
    counts = Counter(seen[-window:] if window else seen)
    wanted = []
    for token, value in enumerate(logits):
        if counts[token]:
            value = value * repetition if value < 0 else value / repetition
            value -= presence + counts[token] * frequency
        wanted.append(value)
    powers = np.exp(np.array(wanted) - max(wanted))
    for package in (reference, fast):
        found = package.probabilities(np.array(logits), options, seen)
        np.testing.assert_allclose(found, powers / powers.sum(), rtol=1e-9, atol=1e-300)


def test_a_sampler_remembers_what_it_chose(sampling):
    """By hand: a presence penalty of 1 makes it go round once, with the prompt's token last."""
    options = SamplingOptions(presence_penalty=1.0)
    choose = sampling.Sampler(options, seeded(0), [2])
    logits = np.array([0.2, 0.1, 0.3])
    assert [choose(logits) for _ in range(4)] == [0, 1, 2, 2]
    assert choose.seen == [2, 0, 1, 2, 2]


def test_only_a_draw_takes_a_number(sampling):
    numbers = iter([0.9])
    cold = sampling.Sampler(SamplingOptions(presence_penalty=0.1), numbers, [])
    assert cold(np.zeros(3)) == 0
    warm = sampling.Sampler(SamplingOptions(1.0), numbers, [])
    assert warm(np.zeros(3)) == 2
    with pytest.raises(StopIteration):
        warm(np.zeros(3))
