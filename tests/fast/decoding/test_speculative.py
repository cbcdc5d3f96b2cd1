"""A draft changes no token, on any backend and with any cache; how often MLX computes. By law."""

from itertools import islice

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.decoding import autoregressive as fast_autoregressive
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.fast.decoding import speculative as fast_speculative
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.decoding import autoregressive as reference_autoregressive
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.decoding import speculative as reference_speculative
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.speculating import Speculated
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.fast.decoding.test_autoregressive import Evaluations
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

GEMMA = DEMO.parent / "gemma4"
SIDES = {
    "reference": reference.load,
    "cpu": lambda path: fast.load(path, backend="cpu"),
    "mlx": lambda path: fast.load(path, backend="mlx"),
}
TEXT = "Tell me about a king. What is 12 + 7? Tell me about a king."


class Blurred:
    """A draft that is often right: a model whose logits have noise, the last token's own."""

    def __init__(self, model, amount=4.0):
        self.model, self.amount = model, amount

    def __getattr__(self, name):
        return getattr(self.model, name)

    def stages(self, tokens, **options):
        for name, value in self.model.stages(tokens, **options):
            if name == "logits":
                noise = np.random.default_rng(int(tokens[0][-1])).standard_normal(value.shape[-1])
                noise = (noise * self.amount).astype(np.float32)
                on_mlx = getattr(getattr(self.model, "backend", None), "name", "") == "mlx"
                value = value + (type(value)(noise) if on_mlx else noise)
            yield name, value


def package_of(model):
    if hasattr(model, "backend"):
        return fast_speculative, fast_autoregressive, fast_sampling
    return reference_speculative, reference_autoregressive, reference_sampling


def prompt(path):
    return load_tokenizer(path).encode_chat([{"role": "user", "content": TEXT}])


def plain(model, tokens, count):
    _, autoregressive, sampling = package_of(model)
    return list(
        autoregressive.generate(model, tokens, max_tokens=count, stop=(), choose=sampling.greedy)
    )


def sped(model, draft, tokens, count, *, cache=None, sampling=None, uniforms=None, ahead=3):
    package, counts = package_of(model)[0], Speculated()
    sampling, size = sampling or SamplingOptions(), model.config.vocab_size
    if draft is None:
        made = LookupDraft(vocabulary=size, longest=3)
    else:
        made = package.ModelDraft(draft, vocabulary=size, sampling=sampling, uniforms=uniforms)
    room = len(tokens) + count - 1 if cache == "preallocated" else None
    tokens = package.generate(
        model, tokens, draft=made, draft_tokens=ahead, max_tokens=count, stop=(),
        sampling=sampling, uniforms=uniforms, cache=model.make_cache(cache, room=room),
        counts=counts,
    )  # fmt: skip
    return list(tokens), counts


@sampled(0)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("path", [DEMO, GEMMA], ids=lambda path: path.name)
def test_greedy_is_plain_greedy_with_every_cache(side, path):
    """By law. Gemma's sliding layers drop what the window has passed, and are trimmed by drafts."""
    model, tokens = SIDES[side](path), prompt(path)
    expected = plain(model, tokens, 24)
    assert len(set(expected)) > 5
    blurred = Blurred(model)
    runs = [(blurred, cache) for cache in (None, "sliding", "growing", "preallocated")]
    for draft, cache in (*runs, (None, "sliding")):  # caches are trimmed alike for any draft
        found, counts = sped(model, draft, tokens, 24, cache=cache)
        assert found == expected, (cache, draft)
        assert counts.forwards < 24 and counts.made == 24
        assert draft is None or 0 < counts.accepted < counts.drafted


@pytest.mark.parametrize("side", SIDES)
def test_a_model_that_is_its_own_draft_is_believed(side):
    """By law: q is p but for rounding, drawn or not, so hardly anything is refused."""
    model = SIDES[side](MODELS / "tied_bfloat16")
    hot = SamplingOptions(1.0, top_p=0.9, repetition_penalty=1.1)
    for sampling in (SamplingOptions(), hot):
        _, counts = sped(model, model, [1, 5, 9], 41, sampling=sampling, uniforms=seeded(1))
        assert counts.accepted >= counts.drafted - 1 >= 29


@sampled(3, "llama.cpp-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("semantics", ["lockstep", "llama.cpp", "mlx-lm", "vllm"])
def test_penalties_look_at_what_they_look_at_without_a_draft(side, semantics):
    """By law: at temperature 0 the same text. vLLM does not count the prompt's tokens."""
    model, tokens = SIDES[side](DEMO), prompt(DEMO)[:20]
    harsh = SamplingOptions(presence_penalty=3, frequency_penalty=1, semantics=semantics)
    _, autoregressive, sampling = package_of(model)
    expected = list(autoregressive.generate(
        model, tokens, max_tokens=12, stop=(), choose=sampling.Sampler(harsh, iter(()), tokens)
    ))  # fmt: skip
    for draft in (None, model):
        found, counts = sped(model, draft, tokens, 12, sampling=harsh, uniforms=iter(()))
        assert found == expected
    assert counts.accepted == counts.drafted > 5  # its own draft is believed


def test_every_backend_draws_the_same_tokens():
    """By law: from the same numbers, with the same draft; and another seed gives another text."""
    hot = SamplingOptions(1.2, top_k=50, presence_penalty=0.3)
    texts = {}
    for seed in (5, 6):
        for side, load in SIDES.items():
            model = load(DEMO)
            made = sped(model, Blurred(model), prompt(DEMO), 24, sampling=hot,
                        uniforms=seeded(seed))  # fmt: skip
            texts[side, seed] = made[0]
        assert texts["reference", seed] == texts["cpu", seed] == texts["mlx", seed]
    assert texts["cpu", 5] != texts["cpu", 6]


def test_the_first_token_is_drawn_as_without_a_draft():
    """By law: of 200 numbers each gives the token that plain sampling takes with it."""
    model, tokens = SIDES["cpu"](DEMO), prompt(DEMO)[:5]
    hot = SamplingOptions(1.5)
    logits = model.forward([tokens])[0, -1]
    for number in islice(seeded(3), 200):
        (found,), _ = sped(model, None, tokens, 1, sampling=hot, uniforms=iter([number]))
        assert found == fast_sampling.sample(logits, hot, uniform=number)


@pytest.mark.parametrize("sampling", [SamplingOptions(), SamplingOptions(0.8)],
                         ids=["greedy", "drawn"])  # fmt: skip
def test_mlx_evaluates_once_a_forward_pass(monkeypatch, sampling):
    model = SIDES["mlx"](MODELS / "tied_bfloat16")
    plain(model, [1, 5, 9, 14], 2)
    with monkeypatch.context() as patch:
        evaluations = Evaluations(patch)
        _, counts = sped(model, None, [1, 5, 1, 5], 12, sampling=sampling, uniforms=seeded(2))
        assert evaluations.count == counts.forwards
    with monkeypatch.context() as patch:
        evaluations = Evaluations(patch)
        _, counts = sped(model, model, [1, 5, 9], 12, sampling=sampling, uniforms=seeded(2))
        assert evaluations.count == counts.forwards + counts.drafted
