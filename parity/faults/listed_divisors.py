"""Divisors of pairs, as a GGUF file lists them, read back as what Llama 3 made them from.

The file keeps what came out of the config and not what went in. The bounds of the blend are 1 and 4
in every Llama 3, and with these each pair in the blend says how long the first texts were.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.turns import Turns
from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.ops.rope_frequencies_llama3 import rope_frequencies_llama3

LOW, HIGH = 1.0, 4.0
CLOSE = 1e-5  # the divisors are float32


def is_listed(turns: Turns) -> bool:
    """Say whether a file lists the divisor of each pair, for short and long texts alike."""
    return turns.by("longrope") and turns.options["short_factor"] == turns.options["long_factor"]


def blend_of(turns: Turns) -> dict[str, Any] | None:
    """Return the options of `rope_frequencies_llama3` that give the listed divisors, if any do."""
    divisors = np.array(turns.options["short_factor"])
    factor = float(divisors.max())
    if divisors.min() <= 0 or factor <= 1:
        return None
    kept = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    blended = (kept > CLOSE) & (kept < 1 - CLOSE)
    if not blended.any():
        return None
    head = {name: turns.options[name] for name in ("theta", "dims")}
    plain = rope_frequencies(**head)
    lengths = 2 * np.pi / plain * (LOW + (HIGH - LOW) * kept)
    found = head | {
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": round(float(np.median(lengths[blended]))),
    }
    fits = np.allclose(rope_frequencies_llama3(**found), plain / divisors, rtol=CLOSE, atol=0)
    return found if fits else None
