"""What goes wrong with Llama 3's blend of frequencies, which decides pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.listed_divisors import blend_of, is_listed
from lockstep.parity.faults.turns import PLAIN, Turns, times, turning
from lockstep.reference.ops.rope_frequencies import rope_frequencies

LENGTH_OF_LLAMA3 = 8192  # the original length of Llama 3.1 and 3.2


def by_blend(change: Callable[[Turns, Any], Turns | None]) -> Rewrite:
    """Rewrite llama3's blend, also where a file lists nothing but what came of it."""

    def blended(turns: Turns, config: Any) -> Turns | None:
        if turns.by("llama3"):
            return change(turns, config)
        options = blend_of(turns) if is_listed(turns) else None
        if options is None:
            return None
        told = replace(turns, op=f"{PLAIN}_llama3", options=options)
        changed = change(told, config)
        return None if changed == told else changed

    return turning(blended)


def where_blended(
    turns: Turns, other: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
) -> Turns:
    """Change what lies between pairs that are divided and pairs that are not.

    `other(plain, divided, blended)` makes it.
    """
    plain = rope_frequencies(**turns.plain.options)
    divided = plain / turns.options["factor"]

    def same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.isclose(one, other, atol=0)  # the slowest pairs hardly turn

    def changed(frequencies: np.ndarray) -> np.ndarray:
        ends = same(frequencies, plain) | same(frequencies, divided)
        return np.where(ends, frequencies, other(plain, divided, frequencies))

    return turns.then(changed)


FAULTS = (
    Fault(
        id="rope-llama3-scaling-missing",
        wrong="plain frequencies, or all of them divided by the factor",
        right="slow pairs divided by the factor, fast ones kept, a blend between",
        symptom="short prompts are fine, long ones loop",
        where="self_attn.q_rope",
        fix="implement rope_type llama3: low_freq_factor, high_freq_factor and "
        "original_max_position_embeddings decide pair by pair",
        evidence=("ggml-org/llama.cpp#8676", "jmaczan/tiny-vllm#1", "unslothai/unsloth#6197"),
        variants={
            "not at all": turning(
                lambda turns, config: (
                    turns.plain if turns.by("llama3") or is_listed(turns) else None
                )
            ),
            "every pair divided": by_blend(
                lambda turns, config: turns.plain.then(times(1 / turns.options["factor"]))
            ),
            "the blend left as it is": by_blend(
                lambda turns, config: where_blended(turns, lambda plain, divided, found: plain)
            ),
            "the blend divided": by_blend(
                lambda turns, config: where_blended(turns, lambda plain, divided, found: divided)
            ),
            "the blend the other way round": by_blend(
                lambda turns, config: where_blended(
                    turns, lambda plain, divided, found: plain + divided - found
                )
            ),
            "by the longer length": by_blend(
                lambda turns, config: turns.other(
                    original_max_position_embeddings=config.max_position_embeddings
                )
            ),
            "by a length of 8192, whatever the config says": by_blend(
                lambda turns, config: turns.other(original_max_position_embeddings=LENGTH_OF_LLAMA3)
            ),
            "wavelengths without 2 pi": by_blend(
                lambda turns, config: turns.other(
                    original_max_position_embeddings=2
                    * math.pi
                    * turns.options["original_max_position_embeddings"]
                )
            ),
        },
    ),
)
