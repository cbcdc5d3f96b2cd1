"""The reference's sampler in parts, so that each part can be done wrong.

Without an edit it chooses what `reference.decoding.sampling` does, with penalties besides. All is
in float64; ties go to the lowest id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit
from lockstep.reference.checkpoint.errors import InputError

Array = np.ndarray
ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Settings:
    """What a port says that it samples with; what it does not say is off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Step:
    """What one choice is made from: its logits (V,), those of the row before, the ids so far."""

    number: int
    logits: Array
    before: Array | None
    prompt: Sequence[int]
    chosen: Sequence[int]


def softmax(logits: Array) -> Array:
    """Return probabilities. Raises: InputError if there is nothing to choose from."""
    largest = logits.max()  # NaN if there is one
    if not largest > -np.inf:
        raise InputError("logits", "no logit is above -inf: there is nothing to choose from")
    if largest == np.inf:
        raise InputError("logits", "one is infinite: beside it nothing has a chance")
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def ranked(logits: Array) -> Array:
    """Return ids, the best first, the lowest of equals first."""
    return np.argsort(-logits, kind="stable")


def only(logits: Array, keep: Array) -> Array:
    """Return logits in which nothing but `keep`, a mask (V,), can be drawn."""
    return np.where(keep, logits, -np.inf)


def own_row(step: Step) -> Array:
    return step.logits


def whole_history(step: Step) -> Sequence[int]:
    return [*step.prompt, *step.chosen]


def own_uniform(uniforms: Sequence[float], number: int) -> float:
    return uniforms[number]


def penalised(logits: Array, history: Sequence[int], s: Settings) -> Array:
    """Make the ids that were there less likely; a penalty acts once an id, frequency aside."""
    ids, counts = np.unique(np.array([*history], dtype=int), return_counts=True)
    counts = counts[ids < len(logits)]
    ids = ids[ids < len(logits)]
    out = logits.copy()
    seen = out[ids]
    out[ids] = np.where(seen > 0, seen / s.repetition_penalty, seen * s.repetition_penalty)
    out[ids] -= s.presence_penalty + s.frequency_penalty * counts
    return out


def tempered(logits: Array, s: Settings) -> Array:
    return logits / s.temperature


def top_k(logits: Array, s: Settings) -> Array:
    if not 0 < s.top_k < len(logits):
        return logits
    keep = np.zeros(len(logits), dtype=bool)
    keep[ranked(logits)[: s.top_k]] = True
    return only(logits, keep)


def top_p(logits: Array, s: Settings) -> Array:
    """Keep the smallest best set whose mass reaches p; the token that crosses p is in."""
    if s.top_p >= 1:
        return logits
    order, probs = in_rank(logits)
    return kept_in_rank(logits, order, np.cumsum(probs) - probs < s.top_p)


def in_rank(logits: Array) -> tuple[Array, Array]:
    """Return ids, the best first, and their probabilities."""
    order = ranked(logits)
    return order, softmax(logits)[order]


def kept_in_rank(logits: Array, order: Array, keep: Array) -> Array:
    mask = np.zeros(len(logits), dtype=bool)
    mask[order[keep]] = True
    return only(logits, mask)


def min_p(logits: Array, s: Settings) -> Array:
    probs = softmax(logits)
    return only(logits, probs >= s.min_p * probs.max()) if s.min_p > 0 else logits


def first_maximum(logits: Array) -> int:
    return int(np.argmax(logits))


def drawn(logits: Array, uniform: float) -> int:
    """Return the first id, in the order of ids, whose sum of probabilities exceeds the uniform."""
    sums = np.cumsum(softmax(logits))
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def reaches(logits: Array, chosen: int, uniform: float, loose: float) -> bool:
    """Say whether a uniform that is no further than `loose` draws an id."""
    probs = softmax(logits)
    if not 0 <= chosen < len(probs) or not probs[chosen] > 0:
        return False
    end = probs[: chosen + 1].sum()
    return bool(end - probs[chosen] <= uniform + loose and end >= uniform - loose)


RIGHT: Mapping[str, Any] = {
    "row": own_row, "history": whole_history, "uniform": own_uniform, "order": ORDER,
    "penalties": penalised, "temperature": tempered, "top_k": top_k, "top_p": top_p,
    "min_p": min_p, "greedy": first_maximum, "draw": drawn,
}  # fmt: skip


class Sampler:
    """The right sampler, or one with mistakes in it."""

    def __init__(self, settings: Settings, uniforms: Sequence[float] | None, edits: Sequence[Edit]):
        self.uniforms = uniforms
        self.settings = settings
        self.parts = dict(RIGHT)
        for edit in edits:
            if edit.step == "settings":
                self.settings = edit.change(self.settings, settings)
            elif edit.step in self.parts:
                self.parts[edit.step] = edit.change(self.parts[edit.step], settings)

    def choose(self, step: Step, *, nudge: float = 0.0) -> int:
        """Return the id that is chosen; `nudge` moves the uniform and the borders of the cuts.

        Raises: InputError if there is no uniform for it, or nothing to choose from.
        """
        logits = self.cut(step, nudge=nudge)
        if self.settings.temperature == 0:
            return self.parts["greedy"](logits)
        moved = min(max(self.uniform(step) + nudge, 0.0), 1 - 1e-12)
        return self.parts["draw"](logits, moved)

    def cut(self, step: Step, *, nudge: float = 0.0) -> Array:
        """Return the logits (V,) that are chosen from. Raises: InputError if there is no row."""
        logits = self.parts["row"](step)
        if logits is None:
            raise InputError("logits", "there is no row before the first")
        s = replace(
            self.settings,
            top_p=self.settings.top_p * (1 + nudge),
            min_p=self.settings.min_p * (1 + nudge),
        )
        for name in self.parts["order"]:
            logits = self.stage(name, logits, step, s)
        return logits

    def may_draw(self, step: Step, chosen: int, loose: float) -> bool:
        """Say whether an id is drawn with some uniform, or some border of a cut, that is near.

        Sums in the order of ids are looked at all over, others at both ends alone.
        """
        if self.parts["draw"] is not drawn:
            return any(self.choose(step, nudge=one) == chosen for one in (loose, -loose))
        uniform = self.uniform(step)
        cuts = (self.cut(step, nudge=one) for one in (0.0, loose, -loose))
        return any(reaches(logits, chosen, uniform, loose) for logits in cuts)

    def stage(self, name: str, logits: Array, step: Step, s: Settings) -> Array:
        part: Callable[..., Array] = self.parts[name]
        if name == "penalties":
            return part(logits, self.parts["history"](step), s)
        return logits if s.temperature == 0 else part(logits, s)

    def uniform(self, step: Step) -> float:
        try:
            return self.parts["uniform"](self.uniforms or (), step.number)
        except IndexError:
            raise InputError("uniforms", f"there is none for choice {step.number}") from None
