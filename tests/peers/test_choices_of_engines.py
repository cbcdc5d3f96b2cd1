"""Whole answers that engines chose by their own code, and what `explain` says of them. By witness.

llama.cpp draws with the numbers of its own generator, which are known; mlx-lm and torch with some
that nobody tells. All seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import llama_cpp
import mlx.core as mx
import mlx_lm.sample_utils as mlx_sampling
import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GPT2LMHeadModel

from lockstep.parity.chain.choosing import judge_run
from lockstep.parity.chain.drawing import judge_drawn
from lockstep.parity.chain.replay import Run
from lockstep.parity.chain.sampler import Settings
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.faults.around import mistakes
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.peers.test_sampling_peers import (
    VOCABULARY,
    by_llama_cpp,
    gpt2,
    uniforms_of_llama_cpp,
)

__all__ = ["gpt2"]  # a fixture
KNOWN = [one for one in mistakes() if one.family == "sampling"]
STEPS, SEED = 120, 11
LOGITS = (3 * np.random.default_rng(2).standard_normal((STEPS, VOCABULARY))).astype(np.float32)
PROMPT = [*range(0, 30), *range(10, 60), 3, 4, 5]  # longer than any window


class Rows:
    own = True

    def rows(self, fed: Any) -> tuple[list[np.ndarray | None], np.ndarray | None]:
        return [row.astype(np.float64) for row in LOGITS], LOGITS[0].astype(np.float64)


def said(answer: list[int], settings: dict[str, Any], uniforms: list[float] | None) -> Run:
    """Return what a port tells that says no more than these settings."""
    given = Settings(**settings, given=frozenset(settings))
    return Run(Rows(), PROMPT, answer, given, uniforms)


def judged(run: Run) -> Diagnosis:
    found = Diagnosis()
    (judge_drawn if run.uniforms is None else judge_run)(run, KNOWN, found)
    return found


def of_llama_cpp(**settings: Any) -> tuple[list[int], list[float]]:
    """Return an answer of its chain, and the numbers that it drew."""
    options = SamplingOptions(**settings, semantics="llama.cpp")
    tail, text = llama_cpp.llama_sampler_init_dist(SEED), []
    for row in LOGITS:
        text.append(by_llama_cpp(row, options, [*PROMPT, *text], tail)[1])
    llama_cpp.llama_sampler_free(tail)
    numbers = uniforms_of_llama_cpp(SEED)
    return text, [next(numbers) for _ in range(STEPS)]


OWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
WINDOWED = {"temperature": 1.5, "top_k": 12, "top_p": 0.8, "repetition_penalty": 1.6}


@pytest.mark.parametrize("settings", [OWN, WINDOWED], ids=["its defaults", "a window of 64"])
def test_an_answer_of_llama_cpp_follows_llama_cpp(settings: dict[str, Any]) -> None:
    answer, uniforms = of_llama_cpp(**settings)
    found = judged(said(answer, settings, uniforms))
    assert found.verdict == "clean", found
    (note,) = [one for one in found.conventions if one.startswith("sampler-of-an-engine")]
    assert "[llama.cpp]" in note and f"all {STEPS} are the port's" in note
    stated = judged(said(answer, {**settings, "semantics": "llama.cpp"}, uniforms))
    assert stated.verdict == "clean" and stated.conventions == []


def test_its_defaults_need_not_be_said() -> None:
    """A temperature alone is said; what llama.cpp has by itself is found with its order."""
    answer, uniforms = of_llama_cpp(**OWN)
    found = judged(said(answer, {"temperature": 0.8}, uniforms))
    assert found.verdict == "clean", found
    (note,) = found.conventions
    assert note.startswith("engine-defaults: ") and "llama.cpp: temperature 0.8, top-k" in note


def test_a_bug_beside_its_rules_is_named() -> None:
    """The chain is told 1.5, and the port says 0.7: its temperature is another one."""
    answer, uniforms = of_llama_cpp(**{**WINDOWED, "temperature": 0.49})
    found = judged(said(answer, {**WINDOWED, "temperature": 0.7}, uniforms))
    assert [one.id for one in found.faults] == ["temperature-misapplied"], found
    assert found.conventions[0].startswith("sampler-of-an-engine")


def of_mlx_lm(temperature: float, top_p: float, penalty: float) -> list[int]:
    """Return an answer of its processors, its sampler, and its generator."""
    mx.random.seed(SEED)
    sampler = mlx_sampling.make_sampler(temperature, top_p)
    processors = mlx_sampling.make_logits_processors(None, penalty)
    text: list[int] = []
    for row in LOGITS:
        scores = mx.array(row)[None]
        for processor in processors:
            scores = processor(mx.array([*PROMPT, *text]), scores)
        text.append(int(sampler(scores - mx.logsumexp(scores, keepdims=True))[0]))
    return text


def test_mlx_lm_with_numbers_that_are_not_said() -> None:
    """At 1.8 its order keeps fewer tokens than the reference's does; its window is 20."""
    answer = of_mlx_lm(1.8, 0.6, 1.0)
    settings = {"temperature": 1.8, "top_p": 0.6}
    found = judged(said(answer, settings, None))
    assert found.verdict == "clean" and "sampler-order-temperature" in found.conventions[1], found
    stated = judged(said(answer, {**settings, "semantics": "mlx-lm"}, None))
    assert stated.verdict == "clean" and len(stated.conventions) == 1
    wrong = judged(said(answer, {**settings, "top_k": 2}, None))
    assert [(one.id, one.variant) for one in wrong.faults] == [("sampler-setting-ignored", "top-k")]


def test_transformers_with_numbers_that_are_not_said(gpt2: GPT2LMHeadModel) -> None:
    """Right by its own chain and torch.multinomial; with a top-k that the port did not say."""
    torch.manual_seed(SEED)
    config = GenerationConfig(
        do_sample=True, temperature=1.3, top_k=5, top_p=1.0, pad_token_id=0
    )  # fmt: skip
    chain, text = gpt2._get_logits_processor(config, input_ids_seq_length=1), []
    for row in LOGITS:
        scores = chain(torch.tensor([[0]]), torch.tensor(row)[None].clone())
        text.append(int(torch.multinomial(scores.softmax(-1), 1)))
    right = judged(said(text, {"temperature": 1.3, "top_k": 5}, None))
    assert right.verdict == "clean" and len(right.conventions) == 1, right
    wrong = judged(said(text, {"temperature": 1.3, "top_k": 4}, None))
    assert [one.id for one in wrong.faults] == ["top-k-off-by-one"], wrong
