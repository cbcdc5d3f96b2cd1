"""The sampler in parts is the reference's, and each part does as it says."""

import numpy as np
import pytest

from lockstep.parity.chain.sampler import Sampler, Settings, Step, penalised
from lockstep.parity.faults.mistake import Edit
from lockstep.parity.faults.sampling import cuts, draws, penalties
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling import sample
from lockstep.reference.decoding.sampling.candidates import candidates
from lockstep.reference.scheduling.sampling_options import SamplingOptions

THIRDS = np.log([1.0, 2.0, 4.0])  # probabilities 1/7, 2/7, 4/7


def step(logits, chosen=(), prompt=(0,)):
    return Step(0, np.asarray(logits, dtype=float), None, prompt, chosen)


def choose(logits, u, *edits, **settings):
    return Sampler(Settings(**settings), [u], edits).choose(step(logits))


def test_without_a_mistake_it_is_the_references_sampler():
    """By law: the reference has its own code for the same rules."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        logits, u = 3 * draw.standard_normal(30).round(1), draw.random()
        given = {"temperature": draw.choice([0, 0.5, 1.7]), "top_k": int(draw.integers(0, 8)),
                 "top_p": draw.choice([1, 0.3, 0.8]), "min_p": draw.choice([0, 0.2])}  # fmt: skip
        wanted = sample(logits, SamplingOptions(**given), uniform=u)
        assert choose(logits, u, **given) == wanted, given


def test_a_bias_comes_before_the_penalties():
    """By law: the reference has its own code for the same rules. By hand: a ban."""
    draw = np.random.default_rng(1)
    bias = ((2, 1.5), (7, -np.inf))
    for _ in range(50):
        logits, u = 3 * draw.standard_normal(30).round(1), draw.random()
        given = {"temperature": 0.8, "repetition_penalty": 1.3, "logit_bias": bias}
        made = Sampler(Settings(**given), [u], ()).choose(step(logits, [4], [2]))
        assert made == sample(logits, SamplingOptions(**given), uniform=u, seen=[2, 4], prompt=1)
    assert choose(THIRDS, 0.99, temperature=1.0, logit_bias=((2, -np.inf),)) == 1


def test_penalties():
    """By hand: 2 / 1.2 and -2 * 1.2; then 0.5 for being there and 0.25 for each time."""
    logits = np.array([2.0, -2.0, 1.0])
    found = penalised(logits, [0, 1, 1], Settings(repetition_penalty=1.2))
    np.testing.assert_allclose(found, [2 / 1.2, -2.4, 1.0])
    both = Settings(presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(penalised(logits, [0, 1, 1], both), [1.25, -3.0, 1.0])


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(penalties.divided, [2 / 1.2, -2 / 1.2, 1.0]), (penalties.each_time, [2 / 1.2, -2.88, 1.0])],
)
def test_wrong_penalties(wrong, expected):
    """By hand: -2 / 1.2 for all signs; -2 * 1.2^2 for what was there twice."""
    found = wrong(np.array([2.0, -2.0, 1.0]), [0, 1, 1], Settings(repetition_penalty=1.2))
    np.testing.assert_allclose(found, expected)


def kept(wrong, logits=THIRDS, **settings):
    left = wrong(candidates(np.asarray(logits)), Settings(**settings))
    return sorted((left.ids % len(logits)).tolist())


def of(mistakes, id, variant=""):
    (found,) = [one.variants[variant] for one in mistakes if one.id == id]
    return found.change(None, None)


@pytest.mark.parametrize(
    ("id", "variant", "settings", "expected"),
    [
        ("top-p-excludes-crossing", "", {"top_p": 0.6}, [2]),  # right: 1 and 2
        ("top-p-excludes-crossing", "", {"top_p": 0.5}, [2]),  # one always stays
        ("top-p-empty-set", "id 0 then", {"top_p": 0.5}, [0]),
        ("top-p-empty-set", "the last id then", {"top_p": 0.5}, [2]),
        ("top-p-sorted-ascending", "", {"top_p": 0.3}, [0, 1]),
        ("top-p-wrong-gather", "the mask", {"top_p": 0.5}, [0]),  # rank 0 stays: id 2
        ("top-k-off-by-one", "one more", {"top_k": 1}, [1, 2]),
        ("top-k-off-by-one", "one fewer", {"top_k": 2}, [2]),
        ("min-p-wrong-space", "logits", {"min_p": 0.5}, [1, 2]),  # ln 2 = 0.5 ln 4
        ("min-p-wrong-space", "cut to 0", {"min_p": 0.9}, [0, 1, 2]),
    ],
)
def test_wrong_cuts(id, variant, settings, expected):
    """By hand, of probabilities 1/7, 2/7 and 4/7."""
    assert kept(of(cuts.MISTAKES, id, variant), **settings) == expected


def test_sums_in_half_precision():
    """By loop: 1/512 is lost beside 1/2 in bfloat16, so the rest is never reached."""
    tail = np.full(256, 1 / 512)
    logits = np.log(np.concatenate([[0.5], tail]))
    half = of(cuts.MISTAKES, "cdf-accumulation-half", "of top-p, in bfloat16")
    assert len(kept(half, logits, top_p=0.75)) == 257
    assert len(kept(cuts.nucleus(cuts.reached).change(None, None), logits, top_p=0.75)) == 129
    drawn = draws.in_half("bfloat16").change(None, None)
    assert (
        drawn(candidates(logits), 0.7495, Settings(), 257) == 256
        and choose(logits, 0.7495, temperature=1) == 128
    )


@pytest.mark.parametrize(
    ("wrong", "u", "expected"),
    [
        (draws.up_to, 1 / 7, 0),  # right: 1
        (draws.rank_as_id, 0.5, 0),  # rank 0 is id 2
        (draws.of_probabilities, 0.5, 1),  # e^(1/7), e^(2/7), e^(4/7) of 4.256: 0.271, 0.584, 1
    ],
)
def test_wrong_draws(wrong, u, expected):
    """By hand."""
    assert wrong(candidates(THIRDS), u, 3) == expected


def test_ties_go_the_other_way():
    assert draws.last_maximum(candidates(np.array([1.0, 3.0, 3.0, 2.0]))) == 2
    assert choose([1.0, 3.0, 3.0, 2.0], 0.0) == 1


def test_a_draw_needs_a_uniform_and_a_token():
    skip = Edit("uniform", lambda right, s: lambda uniforms, at: right(uniforms, at + 1))
    with pytest.raises(InputError, match="none for choice 0"):
        choose(THIRDS, 0.5, skip, temperature=1)
    nothing = Edit("top_k", lambda right, s: lambda left, _: left.at(slice(0)))
    with pytest.raises(InputError, match="top_k leaves nothing to choose"):
        choose(THIRDS, 0.5, nothing, temperature=1)
