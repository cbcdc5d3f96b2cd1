"""In what engines that are right in their own way differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit, Mistake

Array = np.ndarray


def order(*stages: str) -> Edit:
    return Edit("order", lambda right, settings: ("penalties", *stages))


def with_ties(logits: Array, s: Any) -> Array:
    """Keep all that reach the k-th largest logit."""
    if not 0 < s.top_k < len(logits):
        return logits
    return np.where(logits >= np.sort(logits)[-s.top_k], logits, -np.inf)


def nucleus_with_ties(logits: Array, s: Any) -> Array:
    """Keep all that are as likely as the last one that is kept."""
    from lockstep.parity.chain.sampler import top_p

    kept = top_p(logits, s)
    return np.where(logits >= logits[np.isfinite(kept)].min(), logits, -np.inf)


def by_rank(ascending: bool) -> Any:
    """Sum up in the order of probabilities instead of ids."""

    def draw(logits: Array, uniform: float) -> int:
        from lockstep.parity.chain.sampler import ranked, softmax

        ids = ranked(logits)[::-1] if ascending else ranked(logits)
        sums = np.cumsum(softmax(logits)[ids])
        return int(ids[np.searchsorted(sums, uniform * sums[-1], side="right")])

    return Edit("draw", lambda right, settings: draw)


def mirrored(right: Any, settings: Any) -> Any:
    return lambda uniforms, number: 1 - uniforms[number]


def window(size: int) -> Edit:
    return Edit("history", lambda right, settings: lambda step: right(step)[-size:])


MISTAKES = (
    Mistake(
        id="sampler-order-temperature",
        wrong="cuts at temperature 1, the temperature behind them",
        right="the temperature first, as in transformers",
        symptom="more or less variety at a temperature that is not 1",
        where="decoded",
        fix="nothing, if the engine that is ported does so; else divide by the temperature first",
        evidence=("ggml-org/llama.cpp#4091", "timtoole02/Camelid#534", "lablup/mlxcel#1379",
                  "fishaudio/fish-speech#1150", "ml-explore/mlx-examples#1330"),
        convention=True,
        variants={
            "top-k, top-p, min-p, temperature (llama.cpp)":
                order("top_k", "top_p", "min_p", "temperature"),
            "top-p, min-p, top-k, temperature (mlx-lm)":
                order("top_p", "min_p", "top_k", "temperature"),
        },
    ),
    Mistake(
        id="sampler-order-topk-topp",
        wrong="top-p of the whole distribution, before top-k",
        right="top-p of what top-k leaves, as in transformers",
        symptom="a few tokens more or fewer stay",
        where="decoded",
        fix="nothing, if the engine that is ported does so; else cut by top-k first",
        evidence=("sgl-project/sglang-jax#1563", "mlx-lm#388 (ml-explore/mlx-lm@1b7b67bf)",
                  "openai/gpt-2#187"),
        convention=True,
        variants={"": order("temperature", "top_p", "min_p", "top_k")},
    ),
    Mistake(
        id="top-k-ties-kept",
        wrong="all logits that reach the k-th stay",
        right="exactly k stay, of equals the lowest ids",
        symptom="more than k tokens where logits tie, as in half precision",
        where="decoded",
        fix="nothing, if the engine that is ported does so, as transformers does",
                convention=True,
        variants={"": Edit("top_k", lambda right, settings: with_ties)},
    ),
    Mistake(
        id="top-p-ties-kept",
        wrong="all that are as likely as the last one that is kept stay",
        right="of equals at the border the lowest ids stay",
        symptom="more tokens where probabilities tie",
        where="decoded",
        fix="nothing, if the engine that is ported does so, as mlx-lm does",
        convention=True,
        variants={"": Edit("top_p", lambda right, settings: nucleus_with_ties)},
    ),
    Mistake(
        id="drawing-order",
        wrong="probabilities are summed up in another order, or from the other end",
        right="in the order of ids, until the sum exceeds u",
        symptom="other tokens from the same random numbers, equally likely ones",
        where="decoded",
        fix="nothing: to compare token by token, sum up in the order of ids",
        convention=True,
        variants={
            "the likeliest first (llama.cpp)": by_rank(False),
            "the unlikeliest first": by_rank(True),
            "1 - u": Edit("uniform", mirrored),
        },
    ),
    Mistake(
        id="penalty-window",
        wrong="penalties look at the last tokens alone",
        right="at the prompt and all that was chosen, as in transformers",
        symptom="old words come back in long texts",
        where="decoded",
        fix="nothing, if the engine that is ported does so",
        convention=True,
        variants={"20 (mlx-lm)": window(20), "64 (llama.cpp)": window(64)},
    ),
)  # fmt: skip
