"""Make a port's choices again, from the same logits and the same random numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lockstep.parity.chain.sampler import Sampler, Settings, Step
from lockstep.parity.faults.mistake import Edit
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling.candidates import shares

NUDGE = 1e-5  # float32 sums up a hundred thousand probabilities to within this
# How far right logits may be from the port's, of their root mean square, if they are not its own.
LOOSE = {"float64": 1e-5, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


class HasRows(Protocol):
    own: bool

    def rows(self, fed: Sequence[int]) -> tuple[list[np.ndarray | None], np.ndarray | None]: ...


@dataclass(frozen=True)
class Run:
    """An answer, and what it was chosen from.

    `fed` went in after the prompt, None for the answer itself. Choice i was made from the row of
    pass i + `skipped`, with the uniform of number i + `drawn`.
    """

    source: HasRows
    tokens: Sequence[int]
    answer: Sequence[int]
    settings: Settings
    uniforms: Sequence[float] | None
    dtype: str = "float32"
    fed: tuple[int, ...] | None = None
    skipped: int = 0
    drawn: int = 0

    def shifted(self, *, by: int, first: int, same_uniforms: bool = False) -> Run | None:
        """Return a run that was fed `first` before its answer, None if it says otherwise."""
        if self.fed and self.fed[0] != first:
            return None
        fed = (first, *self.answer[:-1])
        return replace(self, fed=fed, skipped=by, drawn=0 if same_uniforms else by)

    def may_end(self, ends: Collection[int]) -> bool | None:
        """Say whether the choice after the answer may be one of `ends`, None if nobody knows."""
        fed = [*(self.fed or ())]
        fed += self.answer[len(fed) :]
        number = len(self.answer)
        rows, _ = self.source.rows(fed)
        row = rows[number] if number < len(rows) else None
        if row is None or not can_be_chosen_from(row):
            return None
        if self.settings.temperature and number >= len(self.uniforms or ()):
            return None
        step = Step(number, row, rows[number - 1] if number else None, self.tokens, self.answer)
        sampler = Sampler(self.settings, self.uniforms, ())
        return any(self.choice(sampler, step, end) == end for end in ends)

    def surprise(self) -> float:
        """Return minus the log of the chance that another draw gives this answer.

        What the sampler would not draw counts as one of all ids.
        """
        sampler, found = Sampler(self.settings, self.uniforms, ()), 0.0
        for step in self.steps():
            left, chosen = sampler.cut(step), self.answer[step.number - self.drawn]
            chance = shares(left)[left.ids == chosen].sum()
            found -= np.log(max(chance, 1 / len(step.logits)))
        return float(found)

    def repeated(self) -> Run:
        """Return a run whose answer begins at its second token."""
        return replace(self, answer=self.answer[1:])

    def first_choice(self) -> int:
        return Sampler(self.settings, self.uniforms, ()).choose(self.steps()[0])

    def steps(self) -> list[Step]:
        """Return what each choice was made from; those without logits are left out."""
        fed = [*self.answer[:-1]] if self.fed is None else self.fed
        rows, before = self.source.rows(fed)
        found = []
        for number in range(min(len(self.answer), len(rows) - self.skipped)):
            at = number + self.skipped
            row = rows[at]
            if row is not None and can_be_chosen_from(row):
                earlier = rows[at - 1] if at else before
                chosen = [*fed[: self.skipped], *self.answer[:number]]
                found.append(Step(number + self.drawn, row, earlier, self.tokens, chosen))
        return found

    def replayed(self, edits: Sequence[Edit]) -> list[tuple[int, int]] | None:
        """Return what is chosen with mistakes, beside the port's own choice, step by step.

        A choice that rounding may have turned to the port's is the port's.
        """
        run = self.looped(edits)
        return None if run is None else [*run.choices(edits)]

    def is_explained(self, edits: Sequence[Edit]) -> bool:
        """Say whether mistakes give every choice; nothing is chosen behind one that they do not."""
        run, found = self.looped(edits), False
        for ours, theirs in run.choices(edits) if run is not None else ():
            if ours != theirs:
                return False
            found = True
        return found

    def looped(self, edits: Sequence[Edit]) -> Run | None:
        """Return the run as a loop with mistakes makes it, None if the answer is of no such one."""
        run: Run | None = self
        for edit in edits:
            if edit.step == "loop" and run is not None:
                run = edit.change(run, None)
        return run

    def choices(self, edits: Sequence[Edit]) -> Iterator[tuple[int, int]]:
        sampler = Sampler(self.settings, self.uniforms, edits)
        for step in self.steps():
            chosen = self.answer[step.number - self.drawn]
            yield self.choice(sampler, step, chosen), chosen

    def choice(self, sampler: Sampler, step: Step, chosen: int) -> int:
        exact = sampler.choose(step)
        if exact == chosen:
            return exact
        if sampler.settings.temperature == 0:
            return chosen if self.nearly_equal(step.logits, exact, chosen) else exact
        loose = NUDGE if self.source.own else LOOSE[self.dtype]
        return chosen if sampler.may_draw(step, chosen, loose) else exact

    def nearly_equal(self, logits: np.ndarray, one: int, other: int) -> bool:
        """Say whether logits that are not the port's own may stand the other way round in it."""
        if self.source.own or not 0 <= other < len(logits):
            return False
        finite = logits[np.isfinite(logits)]
        size = np.sqrt(np.mean(finite**2))
        return bool(abs(logits[one] - logits[other]) <= LOOSE[self.dtype] * size)


def can_be_chosen_from(row: np.ndarray) -> bool:
    """Say whether a row has a choice in it: no NaN, nothing infinite, but not -inf alone."""
    return bool(-np.inf < row.max() < np.inf)


def missed(pairs: Sequence[tuple[int, int]]) -> float:
    """Return the share of choices that are not the port's."""
    if not pairs:
        raise InputError("logits", "there are none that a choice was made from")
    return sum(ours != theirs for ours, theirs in pairs) / len(pairs)
