"""What goes wrong with the ids in front of a prompt and behind it."""

from __future__ import annotations

from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake

FRONT = ("bos_token", "cls_token")
BACK = ("eos_token", "sep_token")


def without_first(ids: list[int], prompt: Any) -> list[int] | None:
    return ids[1:] if ids[:1] and ids[0] in prompt.special(*FRONT) else None


def first_twice(ids: list[int], prompt: Any) -> list[int] | None:
    return ids[:1] + ids if ids[:1] and ids[0] in prompt.special(*FRONT) else None


def with_front(*names: str) -> Edit:
    """Put a special token in front of ids that begin without it."""

    def change(ids: list[int], prompt: Any) -> list[int] | None:
        found = prompt.special(*names)
        return [*found[:1], *ids] if found and ids[:1] != found[:1] else None

    return Edit("ids", change)


def with_end(ids: list[int], prompt: Any) -> list[int] | None:
    found = prompt.special(*BACK)
    return [*ids, *found[:1]] if found and ids[-1:] != found[:1] else None


MISTAKES = (
    Mistake(
        id="missing-bos",
        wrong="t1 t2 ... tn",
        right="BOS t1 t2 ... tn",
        symptom="bad text; Gemma breaks down altogether",
        where="tokens",
        fix="put BOS in front: the tokenizer's post-processor, or the template, writes it",
        evidence=("https://unsloth.ai/blog/gemma-bugs", "unslothai/unsloth#10312",
                  "abetlen/llama-cpp-python#1537"),
        variants={"": Edit("ids", without_first)},
    ),
    Mistake(
        id="double-bos",
        wrong="BOS BOS t1 t2 ... tn",
        right="BOS t1 t2 ... tn",
        symptom="slightly worse answers; every position is one too high",
        where="tokens",
        fix="encode what a chat template wrote without adding special tokens: it has BOS already",
        evidence=("InfiniTensor/InfiniLM#388", "abetlen/llama-cpp-python#1501",
                  "vllm-project/vllm#16976", "princeton-pli/retaining-by-doing#5"),
        variants={"": Edit("ids", first_twice)},
    ),
    Mistake(
        id="bos-not-wanted",
        wrong="BOS t1 t2 ... tn",
        right="t1 t2 ... tn",
        symptom="slightly worse answers; every position is one too high",
        where="tokens",
        fix="put nothing in front: the tokenizer adds no BOS, whatever bos_token_id the config has",
        variants={
            "bos_token": with_front("bos_token"),
            "eos_token": with_front("eos_token"),
            "pad_token": with_front("pad_token"),
        },
    ),
    Mistake(
        id="eos-behind-prompt",
        wrong="t1 t2 ... tn EOS",
        right="t1 t2 ... tn",
        symptom="the answer has nothing to do with the prompt, or is empty",
        where="tokens",
        fix="add no end-of-text token: the prompt is to be continued",
        variants={"": Edit("ids", with_end)},
    ),
)  # fmt: skip
