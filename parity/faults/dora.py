"""Other gains than DoRA's, or the same on a part of what it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import instead, option
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import rounded

RESCALE = "dora_rescale"

of_the_base = option(RESCALE, "scale", lambda scale: 0.0)
of_an_unscaled_update = option(RESCALE, "scale", lambda scale: 1.0)


def undivided(
    ops: Any, y: Any, weight: Any, bias: Any, a: Any, b: Any, magnitude: Any, *, scale: float
) -> np.ndarray:
    out = y * rounded(magnitude, y.dtype)
    return out if bias is None else out + rounded(bias, y.dtype)


not_divided = instead(RESCALE, undivided)


def on_a_part(*, base: bool) -> Rewrite:
    """Give the gain to what the base gives, or to what the adapter adds; add the other as it is."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.op != RESCALE or graph.source(call, 0).op != "add_lora":
            return None
        plain = graph.source(call, 0).inputs[0]

        def wrong(ops: Any, y: Any, *rest: Any, scale: float) -> np.ndarray:
            *given, without = rest
            gained, other = (without, y - without) if base else (y - without, without)
            return getattr(ops, RESCALE)(gained, *given, scale=scale) + other

        return replace(call.replaced(wrong), inputs=(*call.inputs, plain))

    return rewritten
