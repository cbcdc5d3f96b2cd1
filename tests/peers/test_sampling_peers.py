"""`--semantics` against the engines themselves: what they keep, and what they draw. By witness.

Draws are from fixed seeds. Where rounding may decide they are left out, and counted: the engines
compute in float32. So are ties of which an engine says nothing: how its sort leaves equals.
"""

import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import llama_cpp
import mlx.core as mx
import mlx_lm.sample_utils as mlx_sampling
import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from lockstep.fast.decoding import sampling as fast
from lockstep.reference.decoding import sampling as reference
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_semantics import ENGINES

VOCABULARY = 60
ROUNDS = 250
OPTIONS = {
    "temperature": (0.5, 1.0, 1.4),
    "top_k": (0, 1, 7, 30),
    "top_p": (0.0, 0.3, 0.8, 0.95, 1.0),
    "min_p": (0.0, 0.02, 0.2, 1.0),
    "typical_p": (0.2, 0.7, 1.0),
    "repetition_penalty": (1.0, 1.3, 0.8),
    "frequency_penalty": (0.0, 0.3, -0.2),
    "presence_penalty": (0.0, 0.5),
    "logit_bias": ((), ((3, 2.0), (11, -4.5))),
}
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
UNCUT = {"llama.cpp": OFF | {"typical_p": 1.0}, "transformers": OFF | {"typical_p": 1.0}}
UNCUT["mlx-lm"] = OFF
PEERS = ("llama.cpp", "transformers", "mlx-lm")


def cases(engine: str, seed: int) -> Iterator[tuple[np.ndarray, SamplingOptions, list[int]]]:
    """Yield logits, some of them equal, settings that the engine has, and earlier tokens."""
    rng = np.random.default_rng(seed)
    for number in range(ROUNDS):
        logits = (2.5 * rng.standard_normal(VOCABULARY)).astype(np.float32)
        if number % 3 == 0:  # ties
            logits = np.round(logits)
        drawn = {name: values[rng.integers(len(values))] for name, values in OPTIONS.items()}
        found = {name: drawn[name] for name in drawn if name not in ENGINES[engine].lacks}
        yield logits, SamplingOptions(**found, semantics=engine), rng.integers(0, 30, 80).tolist()


def by_llama_cpp(logits, options: SamplingOptions, seen, tail=None) -> tuple[dict[int, float], int]:
    """Run the chain of llama.cpp's defaults; return what is left, and what `tail` selected."""
    stages = [
        llama_cpp.llama_sampler_init_top_k(options.top_k),
        llama_cpp.llama_sampler_init_typical(options.typical_p, 0),
        llama_cpp.llama_sampler_init_top_p(options.top_p, 0),
        llama_cpp.llama_sampler_init_min_p(options.min_p, 0),
        llama_cpp.llama_sampler_init_temp(options.temperature),
    ]
    stages = [llama_cpp_bias(options), llama_cpp_penalties(options, seen), *stages]
    stages += [] if tail is None else [tail]
    size = len(logits)
    data = (llama_cpp.llama_token_data * size)()
    for token, value in enumerate(logits):
        data[token].id, data[token].logit = token, float(value)
    array = llama_cpp.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)
    for one in stages:
        llama_cpp.llama_sampler_apply(one, ctypes.byref(array))
        if one is not tail:
            llama_cpp.llama_sampler_free(one)
    left = {array.data[place].id: array.data[place].logit for place in range(array.size)}
    return left, array.data[array.selected].id if tail is not None else -1


def llama_cpp_bias(options: SamplingOptions) -> Any:
    pairs = (llama_cpp.llama_logit_bias * max(1, len(options.logit_bias)))()
    for place, (token, bias) in enumerate(options.logit_bias):
        pairs[place].token, pairs[place].bias = token, bias
    return llama_cpp.llama_sampler_init_logit_bias(VOCABULARY, len(options.logit_bias), pairs)


def llama_cpp_penalties(options: SamplingOptions, seen: list[int]) -> Any:
    made = llama_cpp.llama_sampler_init_penalties(
        VOCABULARY, options.window, options.repetition_penalty,
        options.frequency_penalty, options.presence_penalty,
    )  # fmt: skip
    for token in seen:
        llama_cpp.llama_sampler_accept(made, token)
    return made


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
        )
    )


def by_transformers(gpt2, logits, options: SamplingOptions, seen) -> dict[int, float]:
    """Run the processors in the order in which generate itself lines them up."""
    config = GenerationConfig(
        do_sample=True, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p,
        min_p=options.min_p, typical_p=options.typical_p, pad_token_id=0,
        repetition_penalty=options.repetition_penalty,
        sequence_bias={(token,): bias for token, bias in options.logit_bias} or None,
    )  # fmt: skip
    chain = gpt2._get_logits_processor(config, input_ids_seq_length=len(seen))
    scores = chain(torch.tensor([seen]), torch.tensor(logits)[None].clone())[0].numpy()
    return {token: value for token, value in enumerate(scores) if value > -np.inf}


def by_mlx_lm(monkeypatch, logits, options: SamplingOptions, seen) -> dict[int, float]:
    """Run the processors and the sampler, up to its draw."""
    monkeypatch.setattr(
        mlx_sampling, "categorical_sampling", lambda logprobs, temp: logprobs / temp
    )
    processors = mlx_sampling.make_logits_processors(
        dict(options.logit_bias) or None, options.repetition_penalty,
        presence_penalty=options.presence_penalty, frequency_penalty=options.frequency_penalty,
    )  # fmt: skip
    sampler = mlx_sampling.make_sampler(
        options.temperature, options.top_p, options.min_p, top_k=options.top_k
    )
    scores = mx.array(logits)[None]
    for processor in processors:
        scores = processor(mx.array(seen), scores)
    scores = np.array(sampler(scores - mx.logsumexp(scores, keepdims=True)))[0]
    return {token: value for token, value in enumerate(scores) if value > -np.inf}


def shares(left: dict[int, float]) -> np.ndarray:
    """Return the probability of each token, from the logits of those that are left."""
    out = np.zeros(VOCABULARY)
    values = np.array(list(left.values()), np.float64)
    powers = np.exp(values - values.max())
    out[list(left)] = powers / powers.sum()
    return out


def unstable(logits, options: SamplingOptions, seen) -> bool:
    """Say whether a hair's breadth changes what is kept: then float32 may decide otherwise."""
    here = reference.probabilities(logits, options, seen) > 0
    for name in ("top_p", "min_p", "typical_p"):
        for factor in (1 - 1e-5, 1 + 1e-5):
            value = getattr(options, name) * factor
            if 0 < value < 1 and name not in options.rules.lacks:
                other = dataclasses.replace(options, **{name: value})
                if ((reference.probabilities(logits, other, seen) > 0) != here).any():
                    return True
    return False


def same_but_for_ties(ours: np.ndarray, theirs: np.ndarray, free: np.ndarray) -> bool:
    """Say whether the two differ only by which of the tokens that `free` has equal was kept."""
    mine, yours = (ours > 0) & (theirs == 0), (theirs > 0) & (ours == 0)
    both = ~(mine | yours)
    return mine.sum() == yours.sum() and all(
        np.allclose(np.sort(one), np.sort(other), rtol=2e-5, atol=1e-9)
        for one, other in (
            (ours[both], theirs[both]), (free[mine], free[yours]), (ours[mine], theirs[yours])
        )
    )  # fmt: skip


@pytest.mark.parametrize("package", [reference, fast], ids=["reference", "fast"])
@pytest.mark.parametrize("engine", PEERS)
def test_what_is_kept_is_what_the_engine_keeps(monkeypatch, gpt2, engine, package):
    compared = ties = 0
    for logits, options, seen in cases(engine, 7):
        if unstable(logits.astype(np.float64), options, seen):
            continue
        match engine:
            case "llama.cpp":
                theirs, _ = by_llama_cpp(logits, options, seen)
            case "transformers":
                theirs = by_transformers(gpt2, logits, options, seen)
            case _:
                theirs = by_mlx_lm(monkeypatch, logits, options, seen)
        ours, theirs = package.probabilities(logits, options, seen), shares(theirs)
        exact = np.allclose(ours, theirs, rtol=2e-5, atol=1e-9)
        uncut = dataclasses.replace(options, **UNCUT[engine])
        free = package.probabilities(logits, uncut, seen)
        assert exact or same_but_for_ties(ours, theirs, free), (options, logits, ours, theirs)
        compared, ties = compared + 1, ties + (not exact)
    print(f"{engine}: {compared} of {ROUNDS} compared, {ties} with another of equal tokens")
    assert compared > 0.8 * ROUNDS
    assert ties < 0.1 * compared
    assert engine != "mlx-lm" or ties == 0


def uniforms_of_llama_cpp(seed: int) -> Iterator[float]:
    """Yield what its generator gives: std::mt19937, two words to a double, the low one first."""
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    while True:
        low, high = (int(word) for word in generator.random_raw(2))
        yield min((low + high * 2**32) / 2**64, float(np.nextafter(1, 0)))


@pytest.mark.parametrize("package", [reference, fast], ids=["reference", "fast"])
@pytest.mark.parametrize(
    "cuts",
    [{"top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"typical_p": 0.8}, {"min_p": 0.01},
     {"top_p": 0.9}, {}],
    ids=str,
)  # fmt: skip
def test_a_text_of_llama_cpp_is_drawn_token_for_token(package, cuts):
    """With the numbers of its own generator, and the candidates in its order."""
    rng = np.random.default_rng(2)
    options = SamplingOptions(0.8, **cuts, repetition_penalty=1.1, semantics="llama.cpp")
    tail = llama_cpp.llama_sampler_init_dist(11)
    choose = package.Sampler(options, uniforms_of_llama_cpp(11), [])
    text: list[int] = []
    for _ in range(200):
        logits = (2.5 * rng.standard_normal(VOCABULARY)).astype(np.float32)
        _, token = by_llama_cpp(logits, options, text, tail)
        text.append(token)
        assert choose(logits) == token, len(text)
    llama_cpp.llama_sampler_free(tail)
    assert len(set(text)) > 20


def test_greedy_is_llama_cpps():
    """It takes the best of what its cuts leave, which typical sampling may rob of the best."""
    robbed = 0
    for logits, options, seen in cases("llama.cpp", 9):
        cold = dataclasses.replace(options, temperature=0.0)
        if unstable(logits.astype(np.float64), cold, seen) or len(set(logits)) < VOCABULARY:
            continue
        left, _ = by_llama_cpp(logits, cold, seen)
        token = reference.sample(logits, cold, uniform=0.0, seen=seen)
        assert token == max(left, key=lambda one: left[one])
        mine = dataclasses.replace(cold, semantics="lockstep", top_p=1.0)
        robbed += reference.sample(logits, mine, uniform=0.0, seen=seen[-64:]) != token
    assert robbed > 5


def chances(engine: str) -> tuple[np.ndarray, SamplingOptions, np.ndarray]:
    logits = np.array([0.0, 1.0, 0.5, -1.0, 2.0, -2.0, 1.5, 0.2], np.float32)
    options = SamplingOptions(0.9, top_p=0.97, min_p=0.05, semantics=engine)
    return logits, options, reference.probabilities(logits, options)


def assert_drawn_from(probs: np.ndarray, tokens: np.ndarray) -> None:
    """A G-test at a chance of 1e-4 of failing by itself; the seeds are fixed."""
    seen = np.bincount(tokens, minlength=len(probs))
    assert (seen[probs == 0] == 0).all() and (probs == 0).any()
    seen, expected = seen[probs > 0], probs[probs > 0] * len(tokens)
    statistic = 2 * float(np.sum(seen * np.log(seen / expected)))
    # The 0.9999 quantiles of chi squared with 3 to 7 degrees of freedom.
    assert statistic < {3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}[len(seen) - 1]


def test_mlx_lm_draws_from_the_distribution_that_we_say():
    logits, options, probs = chances("mlx-lm")
    mx.random.seed(3)
    sampler = mlx_sampling.make_sampler(options.temperature, options.top_p, options.min_p)
    rows = mx.broadcast_to(mx.array(logits), (20_000, len(logits)))
    rows = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    assert_drawn_from(probs, np.array(sampler(rows)))


def test_transformers_draws_from_the_distribution_that_we_say(gpt2):
    logits, options, probs = chances("transformers")
    torch.manual_seed(3)
    config = GenerationConfig(
        do_sample=True, temperature=options.temperature, top_k=0, top_p=options.top_p,
        min_p=options.min_p, pad_token_id=0,
    )  # fmt: skip
    chain = gpt2._get_logits_processor(config, input_ids_seq_length=1)
    scores = chain(torch.tensor([[0]]), torch.tensor(logits)[None])
    drawn = torch.multinomial(scores.softmax(-1), 20_000, replacement=True)[0].numpy()
    assert_drawn_from(probs, drawn)


def test_a_wrong_distribution_does_not_pass():
    """By law: the same draws are not from the distribution of another engine's order."""
    logits, options, _ = chances("mlx-lm")
    probs = reference.probabilities(logits, options)
    other = reference.probabilities(logits, dataclasses.replace(options, temperature=1.0))
    drawn = np.random.default_rng(0).choice(len(probs), 20_000, p=probs)
    assert_drawn_from(probs, drawn)
    with pytest.raises(AssertionError):
        assert_drawn_from(other, drawn)


@pytest.mark.parametrize("top_k", [VOCABULARY, VOCABULARY + 1])
def test_mlx_lm_refuses_the_same_top_k(top_k):
    with pytest.raises(ValueError, match="has to be an integer in the"):
        mlx_sampling.apply_top_k(mx.zeros((1, VOCABULARY)), top_k)
    mlx_sampling.apply_top_k(mx.zeros((1, VOCABULARY)), VOCABULARY - 1)
