"""What goes wrong where a mask meets the scores: what it makes of them, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.mask import MASK
from lockstep.parity.faults.rewrites import instead, rewrite
from lockstep.parity.graph import Call, Graph

SCORES = 0


def barred(score: Callable[[Any, Any], Any]) -> Rewrite:
    """See everything, and change the scores instead: `score(scores, mask)`."""

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        mask = call.inputs[MASK]
        new = call.with_changed(SCORES, lambda ops, scores, mask: score(scores, mask), mask)
        return new.with_changed(MASK, lambda ops, mask: np.ones_like(mask))

    return rewritten


def lowered(by: float) -> Callable[[Any, Any], Any]:
    """Add a number to the scores of keys that must not be seen."""
    return lambda scores, mask: np.where(mask, scores, scores + scores.dtype.type(by))


def set_to(score: float) -> Callable[[Any, Any], Any]:
    """Give all that must not be seen one score."""
    return lambda scores, mask: np.where(mask, scores, scores.dtype.type(score))


def masked_behind(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Share out among all keys, and drop the shares of those that must not be seen."""
    shared = ops.softmax(scores, np.ones_like(mask), **options)
    return np.where(mask, shared, shared.dtype.type(0))


FAULTS = (
    Fault(
        id="mask-bool-added",
        wrong="softmax(scores + mask), the mask being 0 and 1",
        right="softmax(scores where seen, -inf elsewhere)",
        symptom="nearly plausible text that saw the future",
        where="self_attn.o_proj of the first layer",
        fix="turn a boolean mask into 0 and -inf before it is added",
        evidence=("ml-explore/mlx-lm#27", "ml-explore/mlx-lm#121", "ml-explore/mlx-swift-lm#479"),
        acausal=True,
        variants={"": barred(lambda scores, mask: scores + mask.astype(scores.dtype))},
    ),
    Fault(
        id="mask-behind-softmax",
        wrong="softmax(scores) * mask",
        right="softmax(scores where seen, -inf elsewhere)",
        symptom="the earlier a token, the less it takes in: its weights sum to less than 1",
        where="self_attn.o_proj of the first layer",
        fix="mask the scores, before the softmax",
        acausal=True,
        variants={"": instead("softmax", masked_behind)},
    ),
    Fault(
        id="mask-sentinel-too-small",
        wrong="blocked scores are lowered by too little, or set to a tiny number",
        right="blocked scores are -inf, or the lowest finite number",
        symptom="the future leaks where scores are large, or everywhere",
        where="self_attn.o_proj of the first layer",
        fix="use -inf or finfo.min; in Swift leastNormalMagnitude is a small positive number",
        evidence=("huggingface/transformers#17306", "ml-explore/mlx-swift-lm#369"),
        acausal=True,
        variants={
            "lowered by 10000": barred(lowered(-10_000.0)),
            "lowered by 100": barred(lowered(-100.0)),
            "set to the smallest positive number": barred(set_to(0.0)),
            "raised by the smallest positive number": barred(lambda scores, mask: scores),
        },
    ),
)
