"""Each engine's order and rules, by hand from its text; tests/peers holds them to the engines."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.fast.decoding import sampling as fast
from lockstep.parity.cli.sampling import ENGINES as NAMES
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import sampling as reference
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_semantics import ENGINES

BELOW_1 = float(np.nextafter(1.0, 0.0))
SEVENTHS = np.log(np.array([1.0, 2.0, 4.0]))
TIES = np.array([1.0, 3.0, 3.0, 3.0, 0.0, 2.0])


@pytest.fixture(params=[reference, fast], ids=["reference", "fast"])
def sampling(request):
    return request.param


def kept(sampling, logits, engine, temperature=1.0, **options) -> set[int]:
    chosen = SamplingOptions(temperature, semantics=engine, **options)
    return set(np.flatnonzero(sampling.probabilities(np.asarray(logits), chosen)).tolist())


def test_the_command_line_knows_the_engines():
    assert tuple(ENGINES) == NAMES
    assert all(name == rules.name for name, rules in ENGINES.items())


@pytest.mark.parametrize(
    ("engine", "temperature", "tokens"),
    # At T = 2 the probabilities are .226 .320 .453, at T = 1 they are 1/7 2/7 4/7.
    [("lockstep", 2.0, {0, 1, 2}), ("transformers", 2.0, {0, 1, 2}), ("ember", 2.0, {0, 1, 2}),
     ("vllm", 2.0, {0, 1, 2}),
     ("llama.cpp", 2.0, {1, 2}), ("mlx-lm", 2.0, {1, 2}), ("wedlm", 2.0, {1, 2})],
)  # fmt: skip
def test_top_p_before_or_after_temperature(sampling, engine, temperature, tokens):
    assert kept(sampling, SEVENTHS, engine, temperature, top_p=0.8) == tokens


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [("lockstep", {1, 2}), ("llama.cpp", {1, 2}), ("mlx-lm", {1, 2}), ("transformers", {1, 2, 3}),
     ("vllm", {1, 2, 3}), ("ember", {1, 2, 3}), ("wedlm", {1, 2, 3})],
)  # fmt: skip
def test_ties_at_top_k(sampling, engine, tokens):
    assert kept(sampling, TIES, engine, top_k=2) == tokens


@pytest.mark.parametrize("engine", NAMES)
def test_ties_at_top_p(sampling, engine):
    """By hand: a half is reached by two of four equals, and exceeded by three."""
    tokens = {"mlx-lm": {0, 1, 2, 3}, "ember": {0, 1, 2, 3}, "wedlm": {0, 1, 2}}.get(engine, {0, 1})
    assert kept(sampling, np.zeros(4), engine, top_p=0.5) == tokens


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        ("llama.cpp", {0}),
        ("transformers", {0}),
        ("mlx-lm", {0, 1, 2, 3}),
        ("ember", {0, 1}),
        ("wedlm", {0}),
    ],
)
def test_top_p_of_0(sampling, engine, tokens):
    """llama.cpp and transformers keep one, ember the best and its equals; to mlx-lm it is off."""
    assert kept(sampling, [2.0, 2.0, 1.0, 0.0], engine, top_p=0.0) == tokens


@pytest.mark.parametrize(
    ("engine", "limit"), [("mlx-lm", 2), ("ember", 3)]
)  # fmt: skip
def test_top_k_beyond_the_vocabulary_is_refused_where_it_fails(sampling, engine, limit):
    assert kept(sampling, SEVENTHS, engine, top_k=limit) == set(range(3 - limit, 3))
    with pytest.raises(InputError, match=f"top_k={limit + 1}, but {engine} takes at most {limit}"):
        kept(sampling, SEVENTHS, engine, top_k=limit + 1)


@pytest.mark.parametrize("engine", ["lockstep", "llama.cpp", "transformers", "wedlm"])
def test_top_k_beyond_the_vocabulary_keeps_all_elsewhere(sampling, engine):
    assert kept(sampling, SEVENTHS, engine, top_k=10**9) == {0, 1, 2}


def test_mlx_lm_cuts_by_top_p_before_top_k(sampling):
    """The best two of three have 2/3 and 1/3: after top-k, top-p 0.6 keeps one; before, two."""
    assert kept(sampling, SEVENTHS, "lockstep", top_k=2, top_p=0.6) == {2}
    assert kept(sampling, SEVENTHS, "llama.cpp", top_k=2, top_p=0.6) == {2}
    assert kept(sampling, SEVENTHS, "mlx-lm", top_k=2, top_p=0.6) == {1, 2}


def test_vllm_cuts_by_min_p_before_top_p(sampling):
    """By hand: of 1/7, 2/7 and 4/7 min-p 0.5 leaves 2/6 and 4/6, of which top-p 0.65 keeps one."""
    cuts = {"min_p": 0.5, "top_p": 0.65}
    assert kept(sampling, SEVENTHS, "vllm", **cuts) == {2}
    assert kept(sampling, SEVENTHS, "lockstep", **cuts) == {1, 2}


def test_vllm_counts_the_answer_alone(sampling):
    """By hand: of token 0 in the prompt, 1 twice in the answer, 2 in both, with factors of 2."""
    options = {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    seen = [0, 2, 1, 1, 2]
    chosen = SamplingOptions(1.0, **options, semantics="vllm")
    found = np.log(sampling.probabilities(np.full(4, 2.0), chosen, seen, 2))
    np.testing.assert_allclose(found - found[3], np.array([1, 0, 0.25, 2]) - 2, atol=1e-12)
    every = SamplingOptions(1.0, **options)
    all_of_them = np.log(sampling.probabilities(np.full(4, 2.0), every, seen, 2))
    np.testing.assert_allclose(all_of_them - all_of_them[3], [-1.75, -2, -2, 0], atol=1e-12)
    text = sampling.Sampler(SamplingOptions(presence_penalty=5.0, semantics="vllm"), iter(()), [1])
    assert [text(np.array([0.0, 3.0, 1.0])) for _ in range(3)] == [1, 2, 0]


def test_typical_stops_when_it_reaches_or_when_it_exceeds(sampling):
    """Two tokens of one half each are as typical as can be."""
    for engine, tokens in (("lockstep", {0}), ("transformers", {0, 1}), ("llama.cpp", {0, 1})):
        assert kept(sampling, [0.0, 0.0], engine, typical_p=0.5) == tokens
    assert kept(sampling, [0.0, 0.0], "llama.cpp", typical_p=0.0) == {0}
    assert kept(sampling, np.zeros(4), "llama.cpp", typical_p=0.5) == {0, 1, 2}
    assert kept(sampling, np.zeros(4), "transformers", typical_p=0.1) == {0, 1, 2, 3}


@pytest.mark.parametrize("engine", NAMES)
def test_draws_of_equals_at_the_border(sampling, engine):
    """By hand: to llama.cpp a sum that is u is enough; in ember 0.1 + 0.1 + 0.1 exceeds 0.3."""
    chosen = SamplingOptions(1.0, semantics=engine)
    found = [
        sampling.sample(np.zeros(count), chosen, uniform=uniform)
        for count, uniform in ((6, 0.5), (10, 0.3))
    ]
    assert found == {"llama.cpp": [2, 2], "ember": [3, 2]}.get(engine, [3, 3])


def test_llama_cpp_is_greedy_among_what_the_cuts_leave(sampling):
    logits = np.append(np.log(0.4), np.full(60, np.log(0.01)))
    for engine, token in (("lockstep", 0), ("transformers", 0), ("llama.cpp", 1)):
        chosen = SamplingOptions(0.0, typical_p=0.3, semantics=engine)
        assert sampling.sample(logits, chosen, uniform=0.5) == token
        assert chosen.is_argmax == (engine != "llama.cpp")


def test_windows_of_the_penalties(sampling):
    """mlx-lm looks back 20 tokens, llama.cpp 64, transformers at all."""
    seen = [1, *[2] * 19, *[3] * 44]  # 64 tokens
    for engine, changed in (("mlx-lm", {3}), ("llama.cpp", {1, 2, 3}), ("transformers", {1, 2, 3})):
        chosen = SamplingOptions(1.0, repetition_penalty=2.0, semantics=engine)
        probs = sampling.probabilities(np.ones(5), chosen, seen)
        assert set(np.flatnonzero(probs < probs[0]).tolist()) == changed
        after = sampling.probabilities(np.ones(5), chosen, [*seen, 3])
        assert (after[1] < after[0]) == (engine == "transformers")


def test_llama_cpp_draws_in_the_order_of_its_candidates(sampling):
    """By hand: best first after top-k, and a sum that is reached is enough."""
    for engine, uniform, token in (
        ("lockstep", 0.0, 0), ("llama.cpp", 0.0, 2), ("lockstep", 0.5, 2), ("llama.cpp", 0.5, 2),
        ("llama.cpp", 0.6, 1), ("llama.cpp", 0.9, 0), ("llama.cpp", BELOW_1, 0),
        ("lockstep", BELOW_1, 2),
    ):  # fmt: skip
        chosen = SamplingOptions(1.0, top_k=3, semantics=engine)
        assert sampling.sample(SEVENTHS, chosen, uniform=uniform) == token, (engine, uniform)
    halves = [SamplingOptions(1.0, semantics=engine) for engine in ("lockstep", "llama.cpp")]
    assert [sampling.sample(np.zeros(2), one, uniform=0.5) for one in halves] == [1, 0]


def test_ember_by_hand(sampling):
    """Temperature, top-k, top-p on a softmax of what is left, and the inverse of the sum by ids."""
    chosen = SamplingOptions(0.5, top_k=2, top_p=0.9, semantics="ember")
    # At T = 0.5: 1/21 4/21 16/21; of the best two 1/5 and 4/5, both needed for 0.9.
    np.testing.assert_allclose(sampling.probabilities(SEVENTHS, chosen), [0, 0.2, 0.8], rtol=1e-12)
    for uniform, token in ((0.0, 1), (0.19, 1), (0.21, 2), (BELOW_1, 2)):
        assert sampling.sample(SEVENTHS, chosen, uniform=uniform) == token
    assert sampling.sample(TIES, SamplingOptions(semantics="ember"), uniform=0.9) == 1


def test_ember_takes_the_last_of_the_best_where_no_sum_exceeds(sampling):
    """By hand: Rust's max_by keeps the last of equals; tenths add up to a hair less than 1."""
    chosen = SamplingOptions(1.0, semantics="ember")
    for parts, token in (([1] * 10, 9), ([2, 2, *[1] * 6], 1), ([3, *[1] * 7], 0)):
        logits = np.log(np.array(parts, np.float64))
        assert sampling.sample(logits, chosen, uniform=BELOW_1) == token


def test_wedlm_by_hand(sampling):
    """Top-k with ties, top-p at T = 1, the temperature last."""
    assert kept(sampling, TIES, "wedlm", 0.5, top_k=3, top_p=0.6) == {1, 2}  # 2/3 of three equals
    # The best two of 1/7 2/7 4/7 have 1/3 and 2/3, which is 0.6 and more; of all three they do not.
    assert kept(sampling, SEVENTHS, "wedlm", 0.5, top_k=2, top_p=0.6) == {2}
    assert kept(sampling, SEVENTHS, "wedlm", 0.5, top_p=0.6) == {1, 2}
    chosen = SamplingOptions(0.5, top_p=0.6, semantics="wedlm")
    # Squares of 2/7 and 4/7: 1/5 and 4/5.
    np.testing.assert_allclose(sampling.probabilities(SEVENTHS, chosen), [0, 0.2, 0.8], rtol=1e-12)
    assert sampling.sample(TIES, SamplingOptions(semantics="wedlm"), uniform=0.9) == 1


@pytest.mark.parametrize(
    ("engine", "option", "value"),
    [("ember", "min_p", 0.1), ("ember", "typical_p", 0.5), ("ember", "repetition_penalty", 1.1),
     ("ember", "frequency_penalty", 1.0), ("ember", "presence_penalty", 1.0),
     ("ember", "logit_bias", ((0, 1.0),)), ("mlx-lm", "typical_p", 0.5),
     ("transformers", "frequency_penalty", 1.0), ("transformers", "presence_penalty", 1.0),
     ("transformers", "penalty_window", 5), ("wedlm", "min_p", 0.1),
     ("wedlm", "repetition_penalty", 1.1), ("wedlm", "logit_bias", ((0, 1.0),))],
)  # fmt: skip
def test_what_an_engine_lacks_is_refused(engine, option, value):
    with pytest.raises(InputError, match=f"{option} is set, but {engine} has none"):
        SamplingOptions(semantics=engine, **{option: value})
    SamplingOptions(**{option: value})


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="semantics='sglang', but should be one of lockstep, l"):
        SamplingOptions(semantics="sglang")


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_engine_is_followed_into_nan(sampling, engine, bad):
    for temperature in (0.0, 1.0):
        with pytest.raises(InputError, match=f"logit 1 is {bad}, but should be finite"):
            kept(sampling, [0.0, bad, 1.0], engine, temperature)


values = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0, -np.inf]), st.floats(-30, 30, width=32)),
    min_size=2,
    max_size=12,
).filter(lambda found: max(found) > -np.inf)


@st.composite
def settings_of_an_engine(draw):
    name = draw(st.sampled_from(NAMES))
    share = st.one_of(st.just(1.0), st.floats(0.01, 1.0))
    found = {
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        "top_k": draw(st.integers(0, 14)),
        "top_p": draw(share),
        "min_p": draw(st.one_of(st.just(0.0), st.floats(0.0, 1.0))),
        "typical_p": draw(share),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.2])),
        "presence_penalty": draw(st.sampled_from([0.0, -0.4])),
        "logit_bias": draw(st.sampled_from([(), ((0, 2.5),), ((1, -np.inf), (0, 1.0))])),
    }
    kept = {key: value for key, value in found.items() if key not in ENGINES[name].lacks}
    return SamplingOptions(**kept, semantics=name)


def support(package, logits, options, seen) -> tuple:
    return tuple(np.flatnonzero(package.probabilities(logits, options, seen)))


def near_a_typical_border(logits, options, seen) -> bool:
    """Say whether rounding may decide what typical sampling keeps: the packages round it apart."""
    if options.typical_p == 1:
        return False
    here = support(reference, logits, options, seen)
    shares = [options.typical_p * factor for factor in (1 - 1e-9, 1 + 1e-9)]
    others = [dataclasses.replace(options, typical_p=share) for share in shares if 0 < share < 1]
    nudged = [logits * (1 + sign * 1e-7) for sign in (1, -1)]
    return any(support(reference, logits, other, seen) != here for other in others) or any(
        support(reference, one, options, seen) != here for one in nudged
    )


@settings(max_examples=500)
@given(
    values,
    settings_of_an_engine(),
    st.lists(st.integers(0, 1), max_size=4),
    st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True)),
)
def test_fast_chooses_the_token_of_the_reference(found, options, seen, uniform):
    """By law: from float32 logits and one uniform, under the rules of every engine."""
    logits = np.array(found, np.float32)
    top_k = min(options.top_k, options.rules.most_top_k(len(logits)))
    options = dataclasses.replace(options, top_k=int(top_k))
    assume((logits[2:] > -np.inf).any() or not options.logit_bias)
    assume(not near_a_typical_border(logits.astype(np.float64), options, seen))
    expected = reference.sample(logits, options, uniform=uniform, seen=seen)
    assert fast.sample(logits, options, uniform=uniform, seen=seen) == expected
    assert support(fast, logits, options, seen) == support(reference, logits, options, seen)


@pytest.mark.parametrize("engine", NAMES)
def test_fast_chooses_the_token_of_the_reference_in_a_large_vocabulary(engine):
    """By law: 40 draws of 30,000 logits, with all that the engine has."""
    rng = np.random.default_rng(5)
    options = {"temperature": 0.9, "top_k": 200, "top_p": 0.95, "min_p": 0.002, "typical_p": 0.9,
               "repetition_penalty": 1.2}  # fmt: skip
    kept = {key: value for key, value in options.items() if key not in ENGINES[engine].lacks}
    chosen = SamplingOptions(**kept, semantics=engine)
    tokens = set()
    for _ in range(40):
        logits = (3 * rng.standard_normal(30_000)).astype(np.float32)
        seen, uniform = rng.integers(0, 30_000, 100).tolist(), float(rng.random())
        drawn = [
            one.sample(logits, chosen, uniform=uniform, seen=seen) for one in (reference, fast)
        ]
        assert drawn[0] == drawn[1]
        tokens.add(drawn[0])
    assert len(tokens) > 30
