"""Choices of transformers' generate, and ids of its tokenizers. By witness: their code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests/witnesses/models/untied_float32"
DEMO = ROOT / "parity/demo/checkpoint"
TOKENS = [3, 14, 15, 92, 65]
UNIFORMS = np.random.default_rng(4).random(40).tolist()
STEPS = 32
SAID = {"temperature": 1.6, "top_k": 12, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.3}
WARPERS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


class Drawn(LogitsProcessor):
    """Leaves the token that the next uniform draws, in the order of ids."""

    def __init__(self) -> None:
        self.uniforms = iter(UNIFORMS)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        sums = torch.softmax(scores[0].double(), -1).cumsum(-1)
        token = int((sums <= next(self.uniforms)).sum())
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)


@pytest.fixture(scope="module")
def theirs() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def port(theirs: Any, order: list[str], settings: dict[str, Any], said: dict[str, Any]) -> Dump:
    """Return a dump of transformers' generate: its raw logits, what it chose, what it says."""
    made = [WARPERS[name](settings[name]) for name in order if name in settings]
    with torch.no_grad():
        out = theirs.generate(
            torch.tensor([TOKENS]), attention_mask=torch.ones(1, len(TOKENS), dtype=torch.long),
            logits_processor=LogitsProcessorList([*made, Drawn()]), do_sample=False,
            max_new_tokens=STEPS, min_new_tokens=STEPS, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0, top_k=None, top_p=None, temperature=None,
        )  # fmt: skip
        whole = theirs(torch.tensor([TOKENS])).logits
    answer = out.sequences[0, len(TOKENS) :].tolist()
    taps = {"logits": whole.numpy()}
    for step, logits in enumerate(out.logits[1:], 1):
        taps[f"step.{step}/logits"] = logits[:, None].numpy()
    about = {
        "format": "lockstep-trace", "tokens": TOKENS, "decoded": answer[:-1], "generated": answer,
        "uniforms": UNIFORMS, "sampling": {**said, "ignore_eos": True},
    }  # fmt: skip
    shapes = {name: value.shape for name, value in taps.items()}
    text = {k: one if isinstance(one, str) else json.dumps(one) for k, one in about.items()}
    return Dump(Path("transformers"), shapes, taps.__getitem__, text)


ORDER = [*WARPERS]


def test_their_order_is_ours(theirs: Any) -> None:
    found = explain(reference.load(MODEL), port(theirs, ORDER, SAID, SAID))
    assert found.verdict == "clean" and found.faults == []
    assert found.stages[-1] == {"stage": "sampling", "compared": STEPS, "right": True}


@pytest.mark.parametrize(
    ("left_out", "value"),
    [("repetition_penalty", 1.3), ("temperature", 0.3), ("top_k", 2), ("top_p", 0.3)],
)
def test_a_setting_that_is_left_out_is_named(left_out: str, value: float, theirs: Any) -> None:
    """Beside a temperature, so that no order of the cuts looks the same."""
    rest = {"temperature": 0.7} if left_out != "temperature" else {}
    found = explain(reference.load(MODEL), port(theirs, ORDER, rest, {**rest, left_out: value}))
    (fault,) = found.faults
    assert fault.id == "sampler-setting-ignored"
    assert (fault.variant or "").replace("-", "_").startswith(left_out.partition("_p")[0])


def test_the_temperature_behind_the_cuts_is_a_convention(theirs: Any) -> None:
    """As in llama.cpp: the same warpers, in another order."""
    order = ["repetition_penalty", "top_k", "top_p", "min_p", "temperature"]
    found = explain(reference.load(MODEL), port(theirs, order, SAID, SAID))
    assert found.verdict == "clean"
    assert any(one.startswith("sampler-order-temperature") for one in found.conventions)


def test_ids_of_their_tokenizer(tmp_path: Path) -> None:
    """Their chat template's ids are right; the same text with a backslash and an n is named."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    chat = [{"role": "user", "content": "What is 2+2?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    for said, expected in ((text, []), (text.replace("\n", "\\n"), ["escaped-newline"])):
        ids = tokenizer(said, add_special_tokens=False).input_ids
        path = tmp_path / "port.json"
        path.write_text(json.dumps({"prompt": "What is 2+2?", "chat": True, "tokens": ids}))
        found = explain(reference.load(DEMO), path)
        assert [one.id for one in found.faults] == expected
