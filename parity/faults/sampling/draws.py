"""What goes wrong with the draw itself, and with the greedy choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.decoding.sampling.candidates import Candidates, shares, weights

Array = np.ndarray


@dataclass(frozen=True)
class Draw:
    """A wrong draw, and how likely it makes each id, if not as likely as the right one does."""

    choose: Callable[[Candidates, float, int], int]
    chances: Callable[[Candidates, int], tuple[Array, Array]] | None = None

    def __call__(self, left: Candidates, uniform: float, s: Any, size: int) -> int:
        return self.choose(left, uniform, size)


def draw(choose: Callable[[Candidates, float, int], int], chances: Any = None) -> Edit:
    return Edit("draw", lambda right, settings: Draw(choose, chances))


def last_maximum(left: Candidates) -> int:
    return int(left.ids[left.logits == left.logits.max()].max())


def of_probabilities(left: Candidates, uniform: float, size: int) -> int:
    """Take probabilities for logits. What was cut has probability 0, and is drawn again."""
    sums = np.cumsum(again(left, size)[1])
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def again(left: Candidates, size: int) -> tuple[Array, Array]:
    """Return all ids, and the softmax of their probabilities."""
    probs = np.zeros(size)
    probs[left.ids] = shares(left)
    powers = np.exp(probs)
    return np.arange(size), powers / powers.sum()


def rank_as_id(left: Candidates, uniform: float, size: int) -> int:
    """Hand out the rank that was drawn as if it were an id."""
    sums = np.cumsum(weights(left.best_first()))
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def of_ranks(left: Candidates, size: int) -> tuple[Array, Array]:
    return np.arange(len(left.ids)), shares(left.best_first())


def up_to(left: Candidates, uniform: float, size: int) -> int:
    """Take the first sum that reaches the uniform, though it may not exceed it.

    At 0 that is id 0, whether it was cut or not.
    """
    ordered = by_ids(left)
    sums = np.cumsum(weights(ordered))
    return int(ordered.ids[np.searchsorted(sums, uniform * sums[-1])]) if uniform else 0


def in_half(dtype: str) -> Edit:
    """Sum up in half precision."""

    def wrong(left: Candidates, uniform: float, size: int) -> int:
        from lockstep.reference.precision import dtype_named

        ordered = by_ids(left)
        half = shares(ordered).astype(dtype_named(dtype))
        sums = np.cumsum(half, dtype=half.dtype).astype(np.float64)
        found = np.flatnonzero(sums > uniform)
        return int(ordered.ids[found[0]]) if found.size else size - 1

    return draw(wrong)


def by_ids(left: Candidates) -> Candidates:
    return left.at(np.argsort(left.ids))


def uniform(which: Callable[[int], int]) -> Edit:
    return Edit("uniform", lambda right, s: lambda uniforms, at: right(uniforms, which(at)))


def warm(settings: Any, said: Any) -> Any:
    return replace(settings, temperature=1.0) if settings.temperature == 0 else settings


def row_before(right: Any, settings: Any) -> Any:
    return lambda step: step.before


MISTAKES = (
    Mistake(
        id="argmax-tie-break",
        wrong="of equal logits the highest id, or whichever is found first",
        right="of equal logits the lowest id",
        symptom="greedy text that differs now and then",
        where="decoded",
        fix="compare ids where logits tie: the lowest one wins",
        evidence=("huggingface/candle#3179 (huggingface/candle@87653ca02)",),
        variants={"the highest id": Edit("greedy", lambda right, settings: last_maximum)},
    ),
    Mistake(
        id="temperature-zero-samples",
        wrong="at T = 0 the scaling is skipped, and tokens are drawn at T = 1",
        right="at T = 0 the largest logit is taken",
        symptom="greedy text that is another one each time",
        where="decoded",
        fix="take the argmax at T = 0, before anything else",
                variants={"": Edit("settings", warm)},
    ),
    Mistake(
        id="logits-of-an-earlier-row",
        wrong="the row before the last one",
        right="the logits of the last token",
        symptom="text that is a token behind, or repeats the prompt's end",
        where="decoded",
        fix="take the last row of the logits: index L - 1, not L - 2",
        variants={"": Edit("row", row_before)},
    ),
    Mistake(
        id="categorical-on-probs",
        wrong="probabilities are given where logits are wanted",
        right="logits, or their logarithms",
        symptom="nearly every token is as likely as any other",
        where="decoded",
        fix="hand logits to a sampler of logits, and probabilities to one of probabilities",
        variants={"": draw(of_probabilities, again)},
    ),
    Mistake(
        id="sampled-rank-as-id",
        wrong="the rank that was drawn is taken for an id",
        right="sorted_ids[rank]",
        symptom="the first ids of the vocabulary again and again",
        where="decoded",
        fix="look the drawn rank up in the sorted ids",
        evidence=("ml-explore/mlx-lm@8726691c (mlx-examples #610)",),
        variants={"": draw(rank_as_id, of_ranks)},
    ),
    Mistake(
        id="rng-state-frozen",
        wrong="the same random number at each step",
        right="a new one at each step",
        symptom="loops; every request gives the same text",
        where="decoded",
        fix="advance the generator's state, also inside of a compiled graph",
        evidence=("mlx#3828 (ml-explore/mlx@ce3073389)", "jundot/omlx#973 (maintainer comment)",
                  "mlx#1301 (ml-explore/mlx@43ffdab17)", "mlx#3432 (ml-explore/mlx@5f519ef6f)"),
        variants={"the first": uniform(lambda at: 0)},
    ),
    Mistake(
        id="uniform-of-another-step",
        wrong="u of the step after, or before",
        right="u of this step",
        symptom="another text from the same seed",
        where="decoded",
        fix="draw one number a token, and none before the first",
        variants={
            "one was thrown away": uniform(lambda at: at + 1),
            "two a step": uniform(lambda at: 2 * at),
            "the second of two a step": uniform(lambda at: 2 * at + 1),
        },
    ),
    Mistake(
        id="draw-at-the-border",
        wrong="the first token whose sum is at least u",
        right="the first whose sum exceeds u",
        symptom="u = 0 gives token 0, whether it was cut or not",
        where="decoded",
        fix="compare u < sum",
        variants={"": draw(up_to)},
    ),
    Mistake(
        id="draw-sums-in-half",
        wrong="probabilities are summed up in half precision until u is reached",
        right="in float32",
        symptom="the last tokens are never drawn, or too often",
        where="decoded",
        fix="take probabilities and their sums in float32",
        evidence=("ml-explore/mlx-lm@0b518841 (mlx-examples #602)",),
        variants={"bfloat16": in_half("bfloat16"), "float16": in_half("float16")},
    ),
)  # fmt: skip
