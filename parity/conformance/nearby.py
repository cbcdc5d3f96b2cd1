"""Two more legal ways for an example that may be a single number: a rounding off, in and out.

The ways of `parity/noise` show how far right engines lie apart over the many numbers of a model.
In one number they may all agree by luck. So an answer may also be right for inputs that are half a
unit in the last place away (what a stable algorithm promises), or be rounded once more itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.parity.conformance.families.packed import PACKED
from lockstep.parity.conformance.families.pointwise import POINTWISE
from lockstep.parity.judging.judge import EPSILONS

TRIES = 3
# Where another input is another choice, which no rounding excuses.
CHOOSING = frozenset({"top_k_routing"})
# Each number by itself: nothing is summed.
ALONE = frozenset({*POINTWISE, *PACKED, "embedding", "rope"})
# exp(x) of a float32 is 0 or infinite from here on, and some engines take tiny numbers for 0.
VANISHING = {"float32": 2.0**-120, "bfloat16": 2.0**-120, "float16": 2.0**-24}


def nearby_inputs(values: Mapping[str, Any], op: str, dtype: np.dtype) -> list[dict[str, Any]]:
    """Return arguments whose floats are half a rounding away, up or down as chance has it.

    They are in float64; packed matrices, positions and masks stay as they are.
    """
    if op in CHOOSING:
        return []
    half = EPSILONS[dtype.name] / 2

    def moved(value: Any, rng: np.random.Generator) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            return value
        return value.astype(np.float64) * (1 + half * rng.choice((-1, 1), value.shape))

    return [
        {name: moved(value, np.random.default_rng(seed)) for name, value in values.items()}
        for seed in range(TRIES)
    ]


def rounded_again(
    right: np.ndarray, values: Mapping[str, Any], op: str, dtype: np.dtype
) -> np.ndarray:
    """Return the right result with every number half a rounding off, up and down by turns.

    A sum of K numbers, one after another, is off by the root of K / 3 of them.
    """
    terms = 1 if op in ALONE else max(widths(values), default=1)
    share = EPSILONS[dtype.name] / 2 * max(1.0, (terms / 3) ** 0.5)
    signs = np.where(np.arange(right.size) % 2, -1.0, 1.0).reshape(right.shape)
    wide = right.astype(np.float64)
    return wide + signs * (np.abs(wide) * share + VANISHING[dtype.name])


def widths(values: Mapping[str, Any]) -> list[int]:
    """Return the length of the last axis of each array."""
    return [value.shape[-1] for value in values.values() if isinstance(value, np.ndarray)]
