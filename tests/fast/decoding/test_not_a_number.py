"""A NaN in one text is none in another: beside it, after it in its row, or behind it as padding.

Attention weighs what is hidden by 0, and 0 times NaN is NaN. By law: the texts of single runs.
"""

import shutil

import numpy as np
import pytest

from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.scheduling.in_flight import Prompt
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.fast.decoding.test_continuous import SIDES, package_of
from tests.fast.decoding.test_speculative import package_of as speculative_package
from tests.parity.conftest import MODELS
from tests.sampled import sampled

EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return a function: the folder of an untied model whose row of an id is NaN."""

    def plant(token):
        folder = tmp_path_factory.mktemp("nan") / "model"
        shutil.copytree(MODELS / "biased_float16", folder)
        path = folder / "model.safetensors"
        file = SafetensorsFile(path)
        table = file.read(EMBEDDINGS)
        before = table.tobytes()
        table[token] = np.nan
        data = path.read_bytes()
        assert data.count(before) == 1
        path.write_bytes(data.replace(before, table.tobytes()))
        return folder

    return plant


class Falling:
    """Takes the largest of the others; from a call on, the 7."""

    def __init__(self, call):
        self.left = call

    def __call__(self, logits):
        self.left -= 1
        found = np.array(logits)
        if not np.isfinite(found).all():
            raise InputError("logits", "NaN")
        found[7] = -np.inf
        return 7 if self.left < 1 else int(found.argmax())


NEVER = 999
# The length of each prompt, how many tokens may come, and when it falls. Two slots.
SHORTER_MOVES = [(3, 90, 40), (9, 10, NEVER), (5, 60, NEVER), (70, 30, NEVER), (4, 9, NEVER)]
SHORTER_JOINS = [(30, 90, NEVER), (40, 60, 20), (5, 60, NEVER), (6, 9, NEVER)]


def prompts(vocabulary, texts):
    """Return prompts without a 7, and choosers of which one falls."""
    rng = np.random.default_rng(1)
    return [
        Prompt(rng.integers(8, vocabulary, length).tolist(), count, (), Falling(fall))
        for length, count, fall in texts
    ]


@sampled(1, "joins-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("texts", [SHORTER_MOVES, SHORTER_JOINS], ids=["moves", "joins"])
def test_a_text_that_dies_takes_nobody_with_it(planted, side, texts):
    """What it leaves in its row stands behind a shorter text, and a longer one has it looked at."""
    model = SIDES[side](planted(7))
    continuous, autoregressive, _ = package_of(model)
    dying = next(number for number, (_, _, fall) in enumerate(texts) if fall != NEVER)
    found, errors = {}, []
    for one in continuous.generate(model, prompts(model.config.vocab_size, texts), slots=2):
        found.setdefault(one.text, []).append(one.token)
        errors += [] if one.error is None else [one.text]
    assert errors == [dying] and found.pop(dying)[-2:] == [7, None]
    for number, one in enumerate(prompts(model.config.vocab_size, texts)):
        alone = autoregressive.generate(model, one.tokens, max_tokens=one.max_tokens, stop=(),
                                        choose=one.choose)  # fmt: skip
        assert number == dying or found[number] == list(alone), number


def read_together(model, texts):
    """Return five tokens of each text, read together, and those of single runs."""
    continuous, autoregressive, sampling = package_of(model)
    found = [[] for _ in texts]
    chosen = [Prompt(text, 5, (), sampling.greedy) for text in texts]
    for one in continuous.generate(model, chosen, slots=len(texts)):
        found[one.text].append(one.token)
    options = {"max_tokens": 5, "stop": (), "choose": sampling.greedy}
    return found, [list(autoregressive.generate(model, list(text), **options)) for text in texts]


@pytest.mark.parametrize("side", SIDES)
def test_padding_brings_no_nan_to_prompts_that_are_read_together(planted, side):
    found, alone = read_together(
        SIDES[side](planted(0)), [[9, 8, 7, 6, 5, 4, 3], [11, 12, 13, 14], [20, 21, 22, 23, 24]]
    )
    assert found == alone and {len(text) for text in found} == {5}


@pytest.mark.parametrize("side", SIDES)
def test_tokens_may_come_in_any_sequence(side):
    texts = [[9, 8, 7, 6, 5, 4, 3], (11, 12, 13, 14), np.array([20, 21, 22, 23, 24]), (3,)]
    found, alone = read_together(SIDES[side](MODELS / "biased_float16"), texts)
    assert found == alone


class Offering(LookupDraft):
    """Proposes 7 alone."""

    def propose(self, text, count):
        self.shares = [np.eye(1, self.vocabulary, 7)[0]] * count
        return [7] * count


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("sampling", [SamplingOptions(), SamplingOptions(logit_bias=((7, -99.0),))],
                         ids=["greedy", "biased"])  # fmt: skip
def test_a_refused_draft_of_nan_changes_no_token(planted, side, sampling):
    model = SIDES[side](planted(7))
    package, autoregressive, choosing = speculative_package(model)
    expected = list(autoregressive.generate(
        model, [9, 8, 10], max_tokens=8, stop=(),
        choose=choosing.Sampler(sampling, iter(()), [9, 8, 10]),
    ))  # fmt: skip
    assert 7 not in expected
    made = package.generate(
        model, [9, 8, 10], draft=Offering(vocabulary=model.config.vocab_size, longest=1),
        draft_tokens=3, max_tokens=8, stop=(), sampling=sampling, uniforms=seeded(0),
    )  # fmt: skip
    assert list(made) == expected
