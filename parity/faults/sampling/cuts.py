"""What goes wrong with top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.decoding.sampling.candidates import Candidates, shares, weights
from lockstep.reference.decoding.sampling.top_k import top_k

Array = np.ndarray
Keep = Callable[[Array, float], Array]  # probabilities, the best first, and p to a mask


def cut(step: str, wrong: Callable[[Candidates, Any], Candidates]) -> Edit:
    return Edit(step, lambda right, settings: wrong)


def nucleus(keep: Keep, *, empty: int | None = None, ascending: bool = False) -> Edit:
    """Keep another set; where it is `empty`, the id that such ports come out with."""

    def wrong(left: Candidates, s: Any) -> Candidates:
        if s.share("top_p") == 1:
            return left
        ranked = left.best_first()
        ordered = ranked.at(slice(None, None, -1)) if ascending else ranked
        kept = ordered.at(keep(shares(ordered), s.top_p))
        if len(kept.ids):
            return kept
        return ranked.at(slice(1)) if empty is None else Candidates(np.array([empty]), np.zeros(1))

    return cut("top_p", wrong)


def reached(probs: Array, p: float) -> Array:
    """The right set."""
    return np.cumsum(probs) - probs < p


def within(probs: Array, p: float) -> Array:
    return np.cumsum(probs) <= p


def in_half(dtype: str) -> Keep:
    """Sum up in half precision."""

    def keep(probs: Array, p: float) -> Array:
        from lockstep.reference.precision import dtype_named

        half = probs.astype(dtype_named(dtype))
        return (np.cumsum(half, dtype=half.dtype) - half).astype(np.float64) < p

    return keep


def mask_of_ranks(left: Candidates, s: Any) -> Candidates:
    """Use the mask over ranks as if it were one over ids."""
    if s.share("top_p") == 1:
        return left
    count = int(reached(shares(left.best_first()), s.top_p).sum())
    return left.at(left.ids < count)


def k_of(more: int) -> Edit:
    def wrong(left: Candidates, s: Any) -> Candidates:
        count = s.top_k + more
        return top_k(left, count, ties=s.rules.top_k_ties) if s.top_k and count > 0 else left

    return cut("top_k", wrong)


def of_logits(left: Candidates, s: Any) -> Candidates:
    return left.at(left.logits >= s.min_p * left.logits.max()) if s.min_p > 0 else left


def to_zero(left: Candidates, s: Any) -> Candidates:
    """Give what is cut a logit of 0 instead of none."""
    return left._replace(logits=np.where(weights(left) >= s.min_p, left.logits, 0.0))


MISTAKES = (
    Mistake(
        id="top-p-excludes-crossing",
        wrong="keep while cumsum <= p",
        right="keep while cumsum - prob < p: the token that crosses p is in",
        symptom="too greedy",
        where="decoded",
        fix="compare the mass of the better tokens with p, without the token's own",
        evidence=("Biohub/esm#360", "fishaudio/fish-speech#1171",
                  "rasbt/reasoning-from-scratch#164", "thu-nics/C2C#21"),
        variants={"": nucleus(within)},
    ),
    Mistake(
        id="top-p-empty-set",
        wrong="nothing is kept where the best token alone has more than p",
        right="the best token is always kept",
        symptom="NaN, or always the first or last id",
        where="decoded",
        fix="keep the token that crosses p, and thereby at least one",
        evidence=("google-deepmind/simply#42", "BlinkDL/ChatRWKV#170"),
        variants={
            "id 0 then": nucleus(within, empty=0),
            "the last id then": nucleus(within, empty=-1),
        },
    ),
    Mistake(
        id="top-p-sorted-ascending",
        wrong="the unlikeliest tokens that have p together are kept",
        right="the likeliest",
        symptom="nonsense, as if at a high temperature",
        where="decoded",
        fix="sort probabilities in descending order before they are summed up",
        variants={"": nucleus(reached, ascending=True)},
    ),
    Mistake(
        id="top-p-wrong-gather",
        wrong="what holds of a rank is taken to hold of the id of that number",
        right="a mask over ranks goes back to ids",
        symptom="nonsense tokens",
        where="decoded",
        fix="carry the mask, or the rank that was drawn, back by the sorted indices",
        evidence=("ml-explore/mlx-lm@8726691c (mlx-examples #610)",
                  "ml-explore/mlx-lm@2922cb4f (mlx-examples #1222)"),
        variants={"the mask": cut("top_p", mask_of_ranks)},
    ),
    Mistake(
        id="top-k-off-by-one",
        wrong="k + 1 or k - 1 tokens stay",
        right="k tokens stay",
        symptom="hardly to be seen; at k = 1 greedy is not greedy",
        where="decoded",
        fix="remove ranks from k on, counted from 0",
        evidence=("kingoflolz/mesh-transformer-jax#164",),
        variants={"one more": k_of(1), "one fewer": k_of(-1)},
    ),
    Mistake(
        id="min-p-wrong-space",
        wrong="l >= min_p l_max, or what is cut gets a logit of 0",
        right="p >= min_p p_max, and what is cut gets -inf",
        symptom="no effect, or hardly a choice",
        where="decoded",
        fix="compare probabilities, or logits with l_max + ln(min_p), and cut with -inf",
        evidence=("sgl-project/sglang-jax#1563",
                  "lablup/mlxcel#1391 (silent no-op over 32768 vocab)"),
        variants={"logits": cut("min_p", of_logits), "cut to 0": cut("min_p", to_zero)},
    ),
    Mistake(
        id="cdf-accumulation-half",
        wrong="probabilities are summed up in half precision",
        right="in float32",
        symptom="the border of top-p is off; the last tokens are never drawn",
        where="decoded",
        fix="take probabilities and their sums in float32",
        evidence=("ml-explore/mlx-lm@0b518841 (mlx-examples #602, casts to f32 as a workaround)",),
        variants={
            "of top-p, in bfloat16": nucleus(in_half("bfloat16")),
            "of top-p, in float16": nucleus(in_half("float16")),
        },
    ),
)  # fmt: skip
