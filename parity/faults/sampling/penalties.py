"""What goes wrong with penalties for what was said before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit, Mistake

Array = np.ndarray


@np.errstate(all="ignore")  # what is infinite then cannot be drawn from
def divided(logits: Array, history: Sequence[int], s: Any, uncounted: int = 0) -> Array:
    """Divide every logit, those below 0 too."""
    ids = sorted({*recent(history, s)})
    right = other_penalties(logits, history, s, uncounted)
    right[ids] += logits[ids] / s.repetition_penalty - logits[ids]
    return right


def recent(history: Sequence[int], s: Any) -> Sequence[int]:
    return history if s.window is None else history[-s.window :]


def other_penalties(logits: Array, history: Sequence[int], s: Any, uncounted: int) -> Array:
    """Return what the penalties of presence and frequency alone leave."""
    from dataclasses import replace

    from lockstep.parity.chain.sampler import penalised

    return penalised(logits, history, replace(s, repetition_penalty=1.0), uncounted)


@np.errstate(all="ignore")  # what is infinite then cannot be drawn from
def each_time(logits: Array, history: Sequence[int], s: Any, uncounted: int = 0) -> Array:
    """Apply the penalty once for each time that an id was there."""
    ids, counts = np.unique(np.array(recent(history, s), dtype=int), return_counts=True)
    right, seen = other_penalties(logits, history, s, uncounted), logits[ids]
    factor = s.repetition_penalty**counts
    right[ids] += np.where(seen > 0, seen / factor, seen * factor) - seen
    return right


def history(which: Callable[[Any], Sequence[int]]) -> Edit:
    return Edit("history", lambda right, settings: which)


MISTAKES = (
    Mistake(
        id="rep-penalty-sign",
        wrong="l / r for all",
        right="l / r if l > 0, else l r",
        symptom="a higher penalty makes more repetition",
        where="decoded",
        fix="divide logits above 0 by the penalty, and multiply those below",
        evidence=("huggingface/transformers#2302", "panbanda/higgs#32 (review)",
                  "NVIDIA-NeMo/Speech#8194"),
        variants={"": Edit("penalties", lambda right, settings: divided)},
    ),
    Mistake(
        id="rep-penalty-per-occurrence",
        wrong="l / r^count",
        right="l / r, once for each id that was there",
        symptom="frequent tokens are as good as forbidden",
        where="decoded",
        fix="apply the penalty to the set of ids, not to the list",
        variants={"": Edit("penalties", lambda right, settings: each_time)},
    ),
    Mistake(
        id="penalty-history-misaligned",
        wrong="the penalty looks at other tokens",
        right="at the prompt and all that was chosen",
        symptom="odd repetition",
        where="decoded",
        fix="keep one list of ids a sequence: its prompt, and what was chosen for it",
        evidence=("mlx-lm@91d0a054 (mlx-examples #1291)",
                  "mlx-vlm#1583 (Blaizzy/mlx-vlm@ea2edd68) [commit title only]"),
        variants={
            "the prompt left out": history(lambda step: [*step.chosen]),
            "the answer left out": history(lambda step: [*step.prompt]),
            "the newest token left out":
                history(lambda step: [*step.prompt, *step.chosen][:-1]),
        },
    ),
)  # fmt: skip
