"""What goes wrong with the loop around the model: what is fed, handed out, and when it ends."""

from __future__ import annotations

from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake


def first_dropped(run: Any, _: Any) -> Any:
    """The first choice was fed, and never handed out."""
    return run.shifted(by=1, first=run.first_choice())


def fed_twice(run: Any, _: Any) -> Any:
    """The prompt's last token was fed again, and the first choice made after it."""
    return run.shifted(by=1, first=run.tokens[-1], same_uniforms=True)


def handed_out_twice(run: Any, _: Any) -> Any:
    """The first choice stands in the answer twice."""
    return run.repeated() if len(run.answer) > 1 and run.answer[0] == run.answer[1] else None


MISTAKES = (
    Mistake(
        id="first-token-dropped",
        wrong="answer = s1 s2 ...",
        right="answer = s0 s1 s2 ..., s0 being chosen from the prompt's last logits",
        symptom="answers begin in the middle of a word",
        where="decoded",
        fix="hand out what the prompt's logits gave before the loop goes on",
        variants={"": Edit("loop", first_dropped)},
    ),
    Mistake(
        id="prompt-fed-one-too-far",
        wrong="the prompt's last token is fed again before the first choice",
        right="the first choice is made from the prompt's last logits",
        symptom="mild at first: one position is there twice",
        where="decoded",
        fix="use the logits of the prompt, or feed all of it but its last token",
        evidence=("mlx-lm#1109 (ml-explore/mlx-lm@f56d9971)",),
        variants={"": Edit("loop", fed_twice)},
    ),
    Mistake(
        id="token-handed-out-twice",
        wrong="answer = s0 s0 s1 ...",
        right="answer = s0 s1 ...",
        symptom="answers stutter at their first word",
        where="decoded",
        fix="hand a choice out once: before it is fed, or behind",
        variants={"": Edit("loop", handed_out_twice)},
    ),
)

# What the answer alone shows, without any logits; `looping.py` finds it by counting.
COUNTED = (
    Mistake(
        id="eos-ignored",
        wrong="it stops at the limit alone",
        right="it stops at an end-of-text id",
        symptom="runs on",
        where="decoded",
        fix="stop at every id of generation_config's eos_token_id, and at the tokenizer's own",
        variants={"": Edit("answer", lambda run, _: None)},
    ),
    Mistake(
        id="eos-set-incomplete",
        wrong="it stops at one end-of-text id",
        right="at each of generation_config's eos_token_id, and at the tokenizer's own",
        symptom="never stops, or answers its own questions",
        where="decoded",
        fix="stop at every id of generation_config's eos_token_id, and at the tokenizer's own",
        evidence=("huggingface/candle#1753 (huggingface/candle@8d04f70f4) [commit title only]",
                  "mlx-swift-examples #91 (ml-explore/mlx-swift-lm@906ada01) [commit title only]",
                  "mlx-vlm#1326 [commit title only]"),
        variants={"": Edit("answer", lambda run, _: None)},
    ),
    Mistake(
        id="prompt-echoed",
        wrong="answer = t1 ... tn s0 s1 ...",
        right="answer = s0 s1 ...",
        symptom="the prompt stands before the answer",
        where="decoded",
        fix="hand out what comes behind the prompt",
        variants={"": Edit("answer", lambda run, _: None)},
    ),
    Mistake(
        id="max-tokens-off-by-one",
        wrong="n + 1 or n - 1 tokens",
        right="n tokens, if none of them ends the text",
        symptom="one token more or fewer than was asked for",
        where="decoded",
        fix="count the token that the prompt's logits gave",
        variants={
            "one more": Edit("answer", lambda run, _: None),
            "one fewer": Edit("answer", lambda run, _: None),
        },
    ),
)  # fmt: skip
MISTAKES += COUNTED
