"""In what engines that are right in their own way differ.

Their orders and rules are those of `reference.scheduling.sampling_semantics`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.parity.faults.sampling.settings import unsaid
from lockstep.reference.decoding.sampling.candidates import Candidates, weights
from lockstep.reference.scheduling.sampling_semantics import ENGINES


def engine(name: str) -> Edit:
    """Follow an engine in all that it does."""
    return Edit("rules", lambda rules, said: ENGINES[name])


def rule(field: str, value: Any) -> Edit:
    """Follow another one in this alone."""
    return Edit(f"rules.{field}", lambda rules, said: replace(rules, **{field: value}))


def order_of(name: str) -> Edit:
    return rule("order", ENGINES[name].order)


def by_rank(ascending: bool) -> Any:
    """Sum up in the order of probabilities instead of ids."""

    def draw(left: Candidates, uniform: float, s: Any, size: int) -> int:
        ranked = left.best_first()
        ordered = ranked.at(slice(None, None, -1)) if ascending else ranked
        sums = np.cumsum(weights(ordered))
        return int(ordered.ids[np.searchsorted(sums, uniform * sums[-1], side="right")])

    return Edit("draw", lambda right, settings: draw)


def mirrored(right: Any, settings: Any) -> Any:
    return lambda uniforms, number: 1 - uniforms[number]


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
            "top-k, typical, top-p, min-p, temperature (llama.cpp)": order_of("llama.cpp"),
            "top-p, min-p, top-k, temperature (mlx-lm)": order_of("mlx-lm"),
        },
    ),
    Mistake(
        id="sampler-order-topk-topp",
        wrong="top-p or min-p of the whole distribution, before top-k",
        right="of what top-k leaves, as in transformers",
        symptom="a few tokens more or fewer stay",
        where="decoded",
        fix="nothing, if the engine that is ported does so; else cut by top-k first",
        evidence=("sgl-project/sglang-jax#1563", "mlx-lm#388 (ml-explore/mlx-lm@1b7b67bf)",
                  "openai/gpt-2#187"),
        convention=True,
        variants={
            "temperature, top-p, min-p, top-k":
                rule("order", ("temperature", "top_p", "min_p", "top_k", "typical_p")),
            "temperature, min-p, top-k, top-p (vLLM)": order_of("vllm"),
        },
    ),
    Mistake(
        id="top-k-ties-kept",
        wrong="all logits that reach the k-th stay",
        right="exactly k stay, of equals the lowest ids",
        symptom="more than k tokens where logits tie, as in half precision",
        where="decoded",
        fix="nothing, if the engine that is ported does so, as transformers does",
        convention=True,
        variants={"": rule("top_k_ties", "all")},
    ),
    Mistake(
        id="top-p-ties-kept",
        wrong="all that are as likely as the last one that is kept stay",
        right="of equals at the border the lowest ids stay",
        symptom="more tokens where probabilities tie",
        where="decoded",
        fix="nothing, if the engine that is ported does so, as mlx-lm does",
        convention=True,
        variants={"": rule("top_p_ties", "all")},
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
            "by candidates (llama.cpp)": rule("draws", "candidates"),
            "the likeliest first": by_rank(False),
            "the unlikeliest first": by_rank(True),
            "1 - u": Edit("uniform", mirrored),
        },
    ),
    Mistake(
        id="penalty-window",
        wrong="penalties look at some of the tokens alone",
        right="at the prompt and all that was chosen, as in transformers",
        symptom="old words come back in long texts",
        where="decoded",
        fix="nothing, if the engine that is ported does so",
        convention=True,
        variants={
            "the last 20 (mlx-lm)": rule("window", ENGINES["mlx-lm"].window),
            "the last 64 (llama.cpp)": rule("window", ENGINES["llama.cpp"].window),
            "presence and frequency at the answer (vLLM)": rule("counts", "answer"),
        },
    ),
    Mistake(
        id="sampler-of-an-engine",
        wrong="the choices follow an engine's order and rules",
        right="those of the reference",
        symptom="other tokens from the same logits and random numbers",
        where="decoded",
        fix="nothing: say `semantics` in `sampling`, and the choices are made as that engine does",
        convention=True,
        variants={name: engine(name) for name in ENGINES if name != "lockstep"},
    ),
    Mistake(
        id="engine-defaults",
        wrong="what is not said is as an engine has it by itself, and so are its order and rules",
        right="what is not said is off",
        symptom="less variety than the settings tell",
        where="decoded",
        fix="nothing, if it is meant so: say these settings too",
        convention=True,
        variants={
            "llama.cpp: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05":
                unsaid("llama.cpp", temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
            "transformers: temperature 1, top-k 50":
                unsaid("transformers", temperature=1.0, top_k=50),
            "Ollama: temperature 0.8, top-k 40, top-p 0.9, repetition penalty 1.1":
                unsaid("llama.cpp", temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.1),
        },
    ),
)  # fmt: skip
