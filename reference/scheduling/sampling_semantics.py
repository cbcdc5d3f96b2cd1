"""In which order an engine samples, and how its cuts read their limits: names, no arithmetic.

Sources: mlx-lm 0.32.2 (sample_utils), transformers 5.23 (logits_process, and its order in
generate), llama.cpp's default chain (llama-cpp-python 0.3.36), vLLM's V1 sampler (read, not run:
vllm/v1/sample, sampling_params, model_executor/layers/utils), and the texts on ember and on
WeDLM's engine.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from lockstep.reference.checkpoint.errors import InputError, show


@dataclass(frozen=True)
class Semantics:
    """One engine's rules. The logit bias comes first, then the penalties, then `order`."""

    name: str
    order: tuple[str, ...]
    lacks: frozenset[str] = frozenset()  # options that the engine does not have
    window: int | None = None  # how many of the last tokens the penalties look at; None means all
    counts: Literal["all", "answer"] = "all"  # what frequency and presence look at
    top_k_ties: Literal["lowest", "all"] = "lowest"
    top_k_limit: Literal["any", "vocabulary", "below the vocabulary"] = "any"
    top_p_ties: Literal["lowest", "all"] = "lowest"
    top_p: Literal["reached", "exceeded"] = "reached"
    typical: Literal["reached", "reached, with ties", "exceeded"] = "reached"
    zero: dict[str, Literal["best", "off"]] = field(default_factory=dict)  # else 0 is refused
    greedy_after_cuts: bool = False  # whether the cuts come before the choice at temperature 0
    coldest: float = 0.0  # a temperature below it, but above 0, is taken for it
    draws: Literal["ids", "ids, unscaled", "candidates"] = "ids"

    def most_top_k(self, vocabulary: int) -> float:
        """Return the largest `top_k` that the engine takes with so many tokens."""
        limits = {"vocabulary": vocabulary, "below the vocabulary": vocabulary - 1}
        return limits.get(self.top_k_limit, math.inf)


ENGINES = {
    one.name: one
    for one in (
        Semantics("lockstep", ("temperature", "top_k", "top_p", "min_p", "typical_p")),
        Semantics(
            "llama.cpp",
            ("top_k", "typical_p", "top_p", "min_p", "temperature"),
            window=64,
            typical="exceeded",
            zero={"top_p": "best", "typical_p": "best"},
            greedy_after_cuts=True,
            draws="candidates",
        ),
        Semantics(
            "transformers",
            ("temperature", "top_k", "top_p", "min_p", "typical_p"),
            lacks=frozenset({"frequency_penalty", "presence_penalty", "penalty_window"}),
            top_k_ties="all",
            typical="reached, with ties",
            zero={"top_p": "best"},
        ),
        Semantics(
            "mlx-lm",
            ("top_p", "min_p", "top_k", "temperature"),
            lacks=frozenset({"typical_p"}),
            window=20,
            top_k_limit="below the vocabulary",
            top_p_ties="all",
            zero={"top_p": "off"},
        ),
        Semantics(
            "vllm",
            ("temperature", "min_p", "top_k", "top_p"),
            lacks=frozenset({"typical_p", "penalty_window"}),
            counts="answer",
            top_k_ties="all",
            coldest=0.01,
        ),
        Semantics(
            "ember",
            ("temperature", "top_k", "top_p"),
            lacks=frozenset(
                {"min_p", "typical_p", "logit_bias", "penalty_window"}
                | {"repetition_penalty", "frequency_penalty", "presence_penalty"}
            ),
            top_k_ties="all",
            top_k_limit="vocabulary",
            top_p_ties="all",
            zero={"top_p": "best"},
            draws="ids, unscaled",
        ),
        Semantics(
            "wedlm",
            ("top_k", "top_p", "temperature"),
            lacks=frozenset(
                {"min_p", "typical_p", "logit_bias", "penalty_window"}
                | {"repetition_penalty", "frequency_penalty", "presence_penalty"}
            ),
            top_k_ties="all",
            top_p="exceeded",
            zero={"top_p": "best"},
        ),
    )
}


def semantics_named(name: str) -> Semantics:
    """Return an engine's rules. Raises: InputError if there is no such engine."""
    if name not in ENGINES:
        what = f"semantics={show(name)}, but should be one of {', '.join(ENGINES)}"
        raise InputError("sampling", what)
    return ENGINES[name]
