"""Speculative decoding against transformers and mlx-lm, with a draft that is a spoilt copy."""

from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from mlx_lm.generate import speculative_generate_step
from transformers import AutoModelForCausalLM

from lockstep import fast, reference
from lockstep.fast.decoding import speculative as fast_speculative
from lockstep.reference.decoding import speculative
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.speculating import Speculated
from tests.peers.conftest import draw_config
from tests.witnesses import build

COUNT, AHEAD, TRIES = 40, 3, 20
NEAR = 1e-3  # of a standard deviation, fifty times what engines may differ by
Folders = tuple[Path, Path, list[int]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, seed_for) -> Folders:
    """Return a model and a draft of it of which some tokens are taken and some are not.

    The draw is far from a tie: rounding alone would else choose another token.
    """
    for seed in range(first := seed_for("speculative"), first + TRIES):
        drawn = draw(seed, tmp_path_factory)
        _, counts = ours("reference", drawn)
        if 0 < counts.accepted < counts.drafted and gap(drawn) > NEAR:
            return drawn
    raise RuntimeError(f"no seed from {first} on has a draft that is partly right")


def draw(seed: int, tmp_path_factory) -> Folders:
    """Return a random model, a copy with a twentieth of noise in every matrix, and a prompt."""
    config = draw_config(seed)
    model = build.random_model(seed, **config)
    folder = build.save(model, tmp_path_factory.mktemp("model"), dtype="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.05 * parameter.std() * noise)
    draft = build.save(model, tmp_path_factory.mktemp("draft"), dtype="float32")
    for one in (folder, draft):
        build.write_tokenizer(one)
    prompt = np.random.default_rng(seed).integers(0, config["vocab_size"], 20)
    return folder, draft, [*prompt.tolist()] * 2  # said twice, so that lookup finds something


def gap(drawn: Folders) -> float:
    """Return how near transformers' best logit comes to the next, in standard deviations."""
    folder, _, prompt = drawn
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, do_sample=False, max_new_tokens=COUNT, eos_token_id=None, output_logits=True,
        return_dict_in_generate=True, attention_mask=torch.ones_like(ids),
    )  # fmt: skip
    logits = torch.cat(made.logits)
    best, second = logits.topk(2).values.T
    return float(((best - second) / logits.std(-1)).min())


def ours(backend, folders, *, lookup=False):
    folder, draft, prompt = folders
    load, package = reference.load, speculative
    if backend != "reference":
        load, package = lambda path: fast.load(path, backend=backend), fast_speculative
    model, greedy, counts = load(folder), SamplingOptions(), Speculated()
    size = model.config.vocab_size
    if lookup:
        ahead = LookupDraft(vocabulary=size, longest=3)
    else:
        ahead = package.ModelDraft(load(draft), vocabulary=size, sampling=greedy,
                                   uniforms=iter(()))  # fmt: skip
    made = package.generate(
        model, prompt, draft=ahead, draft_tokens=AHEAD, max_tokens=COUNT, stop=(),
        sampling=greedy, uniforms=iter(()), counts=counts,
    )  # fmt: skip
    return list(made), counts


@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu"])
def test_greedy_tokens_are_those_of_assisted_generation_in_transformers(backend, folders):
    prompt = folders[2]
    model, assistant = (AutoModelForCausalLM.from_pretrained(one).eval() for one in folders[:2])
    assistant.generation_config.num_assistant_tokens = AHEAD
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": COUNT, "eos_token_id": None,
               "attention_mask": torch.ones_like(ids)}  # fmt: skip
    plain = model.generate(ids, **options)[0, len(prompt) :].tolist()
    theirs = model.generate(ids, assistant_model=assistant, **options)[0, len(prompt) :].tolist()
    found, counts = ours(backend, folders)
    assert found == theirs == plain
    assert 0 < counts.accepted < counts.drafted
    looked = model.generate(ids, prompt_lookup_num_tokens=AHEAD, **options)[0, len(prompt) :]
    assert ours(backend, folders, lookup=True)[0] == looked.tolist()


def test_greedy_tokens_are_those_of_mlx_lm(folders):
    folder, draft, prompt = folders
    model, assistant = (mlx_lm.load(str(one))[0] for one in (folder, draft))
    steps = speculative_generate_step(
        mx.array(prompt), model, assistant, num_draft_tokens=AHEAD, max_tokens=COUNT
    )
    theirs = [(int(token), drafted) for token, _, drafted in steps]
    found, _ = ours("mlx", folders)
    assert found == [token for token, _ in theirs]
    assert 0 < sum(drafted for _, drafted in theirs) < COUNT
