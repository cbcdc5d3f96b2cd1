"""The reference's sampler in parts, so that each part can be done wrong.

Without an edit it is `reference.decoding.sampling`: its stages, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.mistake import Edit
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling.candidates import Candidates, candidates, shares
from lockstep.reference.decoding.sampling.draw import draw
from lockstep.reference.decoding.sampling.logit_bias import logit_bias
from lockstep.reference.decoding.sampling.penalties import penalties
from lockstep.reference.decoding.sampling.sample import STAGES
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_semantics import Semantics, semantics_named
from lockstep.reference.scheduling.sampling_stages import check_top_k

Array = np.ndarray
CUTS = ("top_k", "top_p", "min_p", "typical_p")
BORDERS = ("top_p", "min_p", "typical_p")


@dataclass(frozen=True)
class Settings(SamplingOptions):
    """What a port says that it samples with; what it does not say is off.

    `given` are the names that it says, None for all of them. `follows` are rules that are no
    engine's.
    """

    given: frozenset[str] | None = None
    follows: Semantics | None = None

    @property
    def rules(self) -> Semantics:
        return self.follows or semantics_named(self.semantics)


@dataclass(frozen=True)
class Step:
    """What one choice is made from: its logits (V,), those of the row before, the ids so far."""

    number: int
    logits: Array
    before: Array | None
    prompt: Sequence[int]
    chosen: Sequence[int]


class BestFirst(Candidates):
    """Candidates that lie best first, so that no stage needs to sort them."""

    def best_first(self) -> BestFirst:
        return self


def own_row(step: Step) -> Array:
    return step.logits


def whole_history(step: Step) -> Sequence[int]:
    return [*step.prompt, *step.chosen]


def own_uniform(uniforms: Sequence[float], number: int) -> float:
    return uniforms[number]


def penalised(logits: Array, history: Sequence[int], s: Settings, uncounted: int = 0) -> Array:
    """Make the ids that were there less likely; `uncounted` are the prompt's, where a rule says."""
    return penalties(
        logits,
        history,
        repetition=s.repetition_penalty,
        frequency=s.frequency_penalty,
        presence=s.presence_penalty,
        window=s.window,
        uncounted=uncounted,
    )


def right_stage(name: str) -> Callable[[Candidates, Settings], Candidates]:
    return lambda left, s: STAGES.stage(name, left, s)


def first_maximum(left: Candidates) -> int:
    return int(left.ids[left.logits == left.logits.max()].min())


def drawn(left: Candidates, uniform: float, s: Settings, size: int) -> int:
    """Return the id in whose part of the sums, in the order of the rules, a uniform falls."""
    return draw(left, uniform, rule=s.rules.draws)


def reaches(left: Candidates, chosen: int, uniform: float, loose: float, rule: str) -> bool:
    """Say whether a uniform that is no further than `loose` draws an id."""
    ordered = left if rule == "candidates" else left.at(np.argsort(left.ids))
    place = np.flatnonzero(ordered.ids == chosen)
    parts = shares(ordered)
    if not place.size or not parts[place[0]] > 0:
        return False
    end = parts[: place[0] + 1].sum()
    return bool(end - parts[place[0]] <= uniform + loose and end >= uniform - loose)


RIGHT: Mapping[str, Any] = {
    "row": own_row, "history": whole_history, "uniform": own_uniform, "penalties": penalised,
    "temperature": right_stage("temperature"), **{name: right_stage(name) for name in CUTS},
    "greedy": first_maximum, "draw": drawn,
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
            elif edit.step.startswith("rules"):
                rules = edit.change(self.settings.rules, settings)
                self.settings = replace(self.settings, follows=rules)
            elif edit.step in self.parts:
                self.parts[edit.step] = edit.change(self.parts[edit.step], settings)

    def choose(self, step: Step, *, nudge: float = 0.0) -> int:
        """Return the id that is chosen; `nudge` moves the uniform and the borders of the cuts.

        Raises: InputError if there is no uniform for it, or nothing to choose from.
        """
        left = self.cut(step, nudge=nudge)
        if self.settings.temperature == 0:
            return self.parts["greedy"](left)
        moved = min(max(self.uniform(step) + nudge, 0.0), 1 - 1e-12)
        return self.parts["draw"](left, moved, self.settings, len(step.logits))

    def cut(self, step: Step, *, nudge: float = 0.0) -> Candidates:
        """Return what is chosen from. Raises: InputError if there is no row, or nothing."""
        return self.cut_of(candidates(self.lowered(step)), len(step.logits), nudge=nudge)

    def lowered(self, step: Step) -> Array:
        """Return the logits (V,) after the bias and the penalties."""
        logits = self.parts["row"](step)
        if logits is None:
            raise InputError("logits", "there is no row before the first")
        if self.settings.logit_bias:
            logits = logit_bias(logits, self.settings.logit_bias)
        if not self.settings.looks_back:
            return logits
        size = len(logits)
        history = [one for one in self.parts["history"](step) if one < size]
        of_answer = self.settings.rules.counts == "answer"
        uncounted = sum(one < size for one in step.prompt) if of_answer else 0
        return self.parts["penalties"](logits, history, self.settings, uncounted)

    def cut_of(self, left: Candidates, size: int, *, nudge: float = 0.0) -> Candidates:
        """Return what the cuts leave of candidates of a vocabulary of `size`."""
        s = nudged(self.settings, nudge)
        if s.temperature == 0 and not s.rules.greedy_after_cuts:
            return left
        check_top_k(s, size)
        for name in s.rules.order:
            left = self.parts[name](left, s)
            if not len(left.ids):
                raise InputError("logits", f"{name} leaves nothing to choose from")
        return left._replace(ids=left.ids % size)  # a wrong part may count from the end

    def may_draw(self, step: Step, chosen: int, loose: float) -> bool:
        """Say whether an id is drawn with some uniform, or some border of a cut, that is near.

        Sums in the order of the rules are looked at all over, others at both ends alone.
        """
        if self.parts["draw"] is not drawn:
            return any(self.choose(step, nudge=one) == chosen for one in (loose, -loose))
        uniform, rule = self.uniform(step), self.settings.rules.draws
        row, size = candidates(self.lowered(step)), len(step.logits)
        nudges = (0.0, loose, -loose) if borders(self.settings) else (0.0,)
        cuts = (self.cut_of(row, size, nudge=one) for one in nudges)
        return any(reaches(left, chosen, uniform, loose, rule) for left in cuts)

    def uniform(self, step: Step) -> float:
        try:
            return self.parts["uniform"](self.uniforms or (), step.number)
        except IndexError:
            raise InputError("uniforms", f"there is none for choice {step.number}") from None


def nudged(s: Settings, by: float) -> Settings:
    """Return settings whose borders are moved by a share, those of cuts that act."""
    if not by:
        return s
    return replace(s, **{name: min(value * (1 + by), 1.0) for name, value in borders(s).items()})


def borders(s: Settings) -> dict[str, float]:
    """Return the settings that are a border of a cut that acts, which rounding may miss."""
    return {name: value for name in BORDERS if 0 < (value := getattr(s, name)) < 1}
