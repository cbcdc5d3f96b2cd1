"""How far two runs of a model are apart, summed over examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.sensitivity.examples import Example

ROWS = 16


@dataclass
class Cost:
    """What packing one kind costs.

    `divergences` are those of Kullback and Leibler at each position, in nats: how many more the
    packed model's distribution would need for a token of the model's own. `same` counts positions
    where both find the same token likeliest. `right` is how many questions are answered exactly,
    `right_before` how many by the model as it is.
    """

    kind: str
    matrices: int
    weights: int
    divergences: list[np.ndarray] = field(default_factory=list)
    same: int = 0
    right: int = 0
    right_before: int = 0
    asked: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def kl(self) -> np.ndarray:
        return np.concatenate(self.divergences)

    def add(self, examples: Sequence[Example], model: np.ndarray, packed: np.ndarray) -> None:
        """Count a batch: logits (B, L, V) of the model as it is, and of the packed one."""
        for row, one in enumerate(examples):
            mine, theirs = model[row, : len(one.ids)], packed[row, : len(one.ids)]
            self.divergences.append(divergence(mine, theirs))
            self.same += int((mine.argmax(-1) == theirs.argmax(-1)).sum())
            if one.answer is None:
                continue
            self.asked += 1
            was, is_now = (answered(one, logits) for logits in (mine, theirs))
            self.right += is_now
            self.right_before += was
            if was and not is_now and one.name is not None:
                self.lost.append(one.name)

    def to_json(self) -> dict[str, Any]:
        kl = self.kl
        return {
            "kind": self.kind, "matrices": self.matrices, "weights": self.weights,
            "kl_mean": float(kl.mean()), "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_max": float(kl.max()), "positions": len(kl),
            "top1_agreement": self.same / len(kl),
            "right": self.right, "right_before": self.right_before, "asked": self.asked,
            "lost": self.lost,
        }  # fmt: skip


def divergence(model: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Return sum p * log(p / q) of each row (L, V) in float64, never below 0.

    A few rows at a time are in float64. Edges: NaN where logits are not finite.
    """
    places = [slice(at, at + ROWS) for at in range(0, len(model), ROWS)]
    return np.concatenate([of_rows(model[place], packed[place]) for place in places])


@np.errstate(invalid="ignore", over="ignore")  # of logits that are not finite
def of_rows(model: np.ndarray, packed: np.ndarray) -> np.ndarray:
    log_p, log_q = log_softmax(model), log_softmax(packed)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def answered(one: Example, logits: np.ndarray) -> bool:
    """Tell whether greedy decoding gives the answer, to its end.

    It does if and only if each token of the answer is the likeliest after those before it.
    """
    assert one.answer is not None
    wanted = np.array(one.ids[one.answer :])
    return bool((logits[one.answer - 1 : len(one.ids) - 1].argmax(-1) == wanted).all())
