"""One text for every architecture: plain, in chunks, with drafts, among others, on any backend.

By law: greedy, in float32; and drawn from one's own numbers, where no draft takes some.
"""

import numpy as np
import pytest

from lockstep.parity.uniforms import seeded
from lockstep.reference.tokenizer.in_flight import Prompt
from lockstep.reference.tokenizer.sampling_options import SamplingOptions
from tests.fast.decoding.test_continuous import SIDES, package_of
from tests.fast.decoding.test_speculative import Blurred, sped
from tests.parity.conftest import MODELS

WITNESSES = MODELS.parent
FOLDERS = {
    "qwen3": MODELS / "untied_float32",
    "gpt2": WITNESSES / "gpt2/original",
    "mistral": WITNESSES / "llama/mistral_window",
    "llama": WITNESSES / "llama/llama_dynamic",
    "gemma4": WITNESSES / "gemma4/effective",
    "gemma4 experts": WITNESSES / "gemma4/sparse",
    "qwen3_moe": next(iter(sorted((WITNESSES / "qwen3_moe").iterdir()))),
}
COUNT = 12
DRAWN = SamplingOptions(0.8, top_k=40)


def texts_of(model) -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(1, model.config.vocab_size, count).tolist() for count in (9, 3, 20)]


def plain(model, tokens, sampling, *, chunk=None) -> list[int]:
    _, autoregressive, package = package_of(model)
    choose = package.greedy if sampling is None else package.Sampler(sampling, seeded(7), tokens)
    return list(
        autoregressive.generate(
            model, tokens, max_tokens=COUNT, stop=(), choose=choose, chunk=chunk
        )
    )


def together(model, texts, sampling) -> list[list[int]]:
    continuous, _, package = package_of(model)
    made = [[] for _ in texts]
    prompts = (
        Prompt(tokens, COUNT, (),
               package.greedy if sampling is None else package.Sampler(sampling, seeded(7), tokens))
        for tokens in texts
    )  # fmt: skip
    for one in continuous.generate(model, prompts, slots=2):
        made[one.text].append(one.token)
    return made


@pytest.mark.parametrize("name", FOLDERS)
def test_every_way_of_making_a_text_makes_the_same(name):
    expected = {}
    for side, load in SIDES.items():
        model = load(FOLDERS[name])
        texts = texts_of(model)
        for key, sampling in (("greedy", None), ("drawn", DRAWN)):
            found = [plain(model, tokens, sampling) for tokens in texts]
            assert found == expected.setdefault(key, found), side
            assert together(model, texts, sampling) == found
            assert [plain(model, tokens, sampling, chunk=4) for tokens in texts] == found
        for draft in (Blurred(model, 0.3), None):
            sped_up = [sped(model, draft, tokens, COUNT)[0] for tokens in texts]
            assert sped_up == expected["greedy"], (side, draft)
    assert len({token for text in expected["drawn"] for token in text}) > 8
