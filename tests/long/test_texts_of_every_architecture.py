"""The decoders on every architecture and every backend, in float32: a row each, a test a statement.

By law, but for the greedy texts of transformers: by witness (`tests/witnesses/README.md`).
"""

from argparse import Namespace

import numpy as np
import pytest

from lockstep.fast.decoding import diffusion as fast_diffusion
from lockstep.parity.decoders import decoder_of
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.architectures import architecture_names
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import diffusion as reference_diffusion
from lockstep.reference.scheduling.diffusion_options import VARIANTS, DiffusionOptions
from lockstep.reference.scheduling.in_flight import Prompt
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.kinds import layer_kinds
from tests.fast.decoding.test_continuous import SIDES, package_of
from tests.fast.decoding.test_diffusion import held
from tests.fast.decoding.test_speculative import Blurred, sped
from tests.parity.conftest import MODELS
from tests.sampled import sampled
from tests.witnesses.test_wedlm_witnesses import renamed

WITNESSES = MODELS.parent
FOLDERS = {
    "qwen3": MODELS / "untied_float32",
    "qwen2": WITNESSES / "llama/qwen2_yarn",
    "gpt2": WITNESSES / "gpt2/original",
    "mistral": WITNESSES / "llama/mistral_window",
    "llama": WITNESSES / "llama/biased_llama3",
    "llama, dynamic rope": WITNESSES / "llama/llama_dynamic",
    "gemma4, as E2B and E4B": WITNESSES / "gemma4/effective",
    "gemma4, as 31B": WITNESSES / "gemma4/dense",
    "gemma4, as 26B-A4B": WITNESSES / "gemma4/sparse",
    "qwen3_moe": WITNESSES / "qwen3_moe/fused",
    "wedlm, as 8B": "8B",
    "wedlm, as 7B": "7B",
}
BY_LENGTH = "llama, dynamic rope"  # there a cache's keys depend on how a text was cut into steps
ROWS = pytest.mark.parametrize("name", FOLDERS)
BACKENDS = pytest.mark.parametrize("side", SIDES)
COUNT = 12
DRAWN = SamplingOptions(0.8, top_k=40)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return where a row's checkpoint is; WeDLM's are its bases' with its own config."""

    def found(name):
        if name.startswith("wedlm"):
            target = tmp_path_factory.mktemp("wedlm") / FOLDERS[name]
            return renamed(FOLDERS[name], target)
        return FOLDERS[name]

    return found


def texts_of(model) -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(1, model.config.vocab_size, count).tolist() for count in (9, 3, 20)]


def plain(model, tokens, sampling, *, chunk=None, count=COUNT) -> list[int]:
    _, autoregressive, package = package_of(model)
    choose = package.greedy if sampling is None else package.Sampler(sampling, seeded(7), tokens)
    return list(
        autoregressive.generate(
            model, tokens, max_tokens=count, stop=(), choose=choose, chunk=chunk
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


def test_every_architecture_has_a_row(folder_of):
    found = {open_checkpoint(folder_of(name)).architecture for name in FOLDERS}
    assert found | {"gemma4"} == set(architecture_names()) and len(found) >= 8


@sampled(2, "qwen3_moe")
@ROWS
def test_every_way_of_making_a_text_makes_the_same(name, folder_of):
    """On all backends, greedy and drawn; in chunks, among others; greedily with two drafts too."""
    expected = {}
    for side, load in SIDES.items():
        model = load(folder_of(name))
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


@sampled(7, "qwen3_moe-cpu")
@BACKENDS
@ROWS
def test_greedy_texts_are_those_of_transformers(name, side, folder_of):
    folder = folder_of(name)
    expected = np.load(folder / "expected.npz")
    model, made = SIDES[side](folder), expected["greedy"]
    assert made.shape[1] >= 6 and len(np.unique(made)) > 2
    for row, tokens in enumerate(expected["tokens"].tolist()):
        assert plain(model, tokens, None, count=made.shape[1]) == made[row].tolist()
    lengths = expected["unequal_lengths"]
    for row, tokens in enumerate(expected["tokens"].tolist()):
        text = plain(model, tokens[: lengths[row]], None, count=expected["unequal_greedy"].shape[1])
        assert text == expected["unequal_greedy"][row].tolist()


@pytest.mark.parametrize("way", VARIANTS)
@BACKENDS
@ROWS
def test_wedlm_with_a_window_of_one_is_sequential_and_its_cache_a_prefills(
    name, side, way, folder_of
):
    """By loop: each token is the best of a mask behind all before it, read anew without a cache."""
    model = SIDES[side](folder_of(name))
    if "sliding_attention" in layer_kinds(model.config):
        return refused_with_windows(folder_of(name))
    mask, prompt, steps, cache = 1, texts_of(model)[0], [], model.make_cache()
    options = DiffusionOptions(mask, VARIANTS[way], window=1, threshold=0.4)
    package = fast_diffusion if hasattr(model, "backend") else reference_diffusion
    made = list(package.generate(
        model, prompt, options=options, room=40, max_tokens=6, stop=(), cache=cache,
        choose=package_of(model)[2].greedy, told=steps.append,
    ))  # fmt: skip
    text = list(prompt)
    for token in made:
        logits = np.array(model.forward([[*text, mask]], last_only=True))[0, 0]
        assert token == logits.argmax()
        text.append(token)
    filled = [place for step in steps for place in step.filled]
    assert filled[:6] == [*range(len(prompt), len(text))] and len(made) == 6
    assert cache.positions.array.tolist() == [[*range(len(text))]]
    whole = model.make_cache()
    model.forward([text], cache=whole)
    for mine, theirs in zip(held(model, cache, 7), held(model, whole, 7), strict=True):
        if name != BY_LENGTH:
            np.testing.assert_allclose(mine, theirs, atol=2e-5 * theirs.std(), rtol=0)


def refused_with_windows(folder) -> None:
    """Masks stand out of order, and a window goes by the order: the decoder is not to be had."""
    options = Namespace(
        decoder="wedlm", model=str(folder), mask_id=1, ignore_config=(), cache=None, wedlm=None,
        window=None, threshold=None, position_penalty=None, penalty=None, steps=None, draft=None,
        draft_tokens=None, ngram=None,
    )  # fmt: skip
    with pytest.raises(InputError, match="layers of this model see a sliding window"):
        decoder_of(options)
