"""Judge choices that were drawn with random numbers that nobody told.

No such choice can be made again. But a sampler makes an answer as likely as it is, and a wrong one
makes the answers of a right one rarely more likely: by a factor of f no oftener than once in f
times, however many choices there are (the likelihood ratio's mean is 1, so by Markov's inequality).
So a mistake is named if it makes the answer more likely than every right sampler, by as much as it
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from lockstep.parity.chain.fitting import Candidate, Fit, candidates
from lockstep.parity.chain.likelihood import SEEN, STRAY, Likely, chance_of, likelihoods, ranked_of
from lockstep.parity.chain.named import named
from lockstep.parity.chain.replay import Run
from lockstep.parity.chain.sampler import Sampler
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.decoding.sampling.candidates import shares

RATE = 1e-3  # of right samplers that are accused
LOOKS = 3  # at bugs, at bugs of an engine, and at what has no name: a third of the rate each
TIED = np.log(100)  # what is less likely by no more than this fits as well
HOTTER = (0.25, 0.4, 0.63, 0.8, 1.25, 1.6, 2.5, 4.0)  # times the temperature: wrong in no known way
Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Right:
    """A right sampler: ours, or that of an engine. `which` are the conventions that make it."""

    which: tuple[Candidate, ...]

    @property
    def edits(self) -> Edits:
        return tuple(one.edit for one in self.which)


def needed(count: int) -> float:
    """Return by which log of a factor the best of so many has to be more likely."""
    return float(np.log(count * LOOKS / RATE))


@dataclass(frozen=True)
class Wrong:
    """A bug, in a sampler that is right but for it; `total` is the log of the likelihood."""

    bug: Candidate
    within: Right
    total: float
    least: float  # by which it has to be more likely than what is right

    @property
    def edits(self) -> Edits:
        return (*self.within.edits, self.bug.edit)


@np.errstate(all="ignore")  # a broken port may hold anything
def judge_drawn(run: Run, mistakes: Sequence[Mistake], result: Diagnosis) -> bool:
    """Judge an answer by its likelihood. Returns whether there was anything to judge by."""
    forms = [one for one in candidates(mistakes) if of_interest(one)]
    rights = right_samplers(forms)
    bugs = [one for one in forms if not one.mistake.convention]
    found = likelihoods(run, [*(one.edits for one in rights), *((one.edit,) for one in bugs)])
    totals, count = found.totals(), found.logs.shape[1]
    if not count:
        return False
    base = float(totals[: len(rights)].max())
    if not np.isfinite(base):
        return False  # no right sampler can draw from these logits: nothing is likelier by a factor
    ours = best_right(totals[: len(rights)], rights)
    wrong = [
        Wrong(one, Right(()), float(total), needed(len(bugs)))
        for one, total in zip(bugs, totals[len(rights) :], strict=True)
    ]
    amiss = odd(run, ours.edits, base)
    if amiss or ours.which or any(one.total - base >= one.least for one in wrong):
        wrong += in_engines(run, bugs, rights)
    bug = named_bug(run, wrong, base)
    result.stage("sampling", count, right=not bug and not amiss)
    outside = float(np.mean(~found.inside[0]))
    if bug and run.source.own:
        result.faults.append(replace(bug, residual_before=outside))
    elif bug or amiss:
        told = amiss if not bug else (
            f"{bug.seen}; {bug.id} would fit; dump the logits, which tell the model's bugs"
        )  # fmt: skip
        result.unexplained.append(Unexplained("decoded", outside, 0.0, told))
    else:
        result.conventions.append(how_likely(run, ours))
        result.conventions += followed(ours, found, [*rights, *(Right((one,)) for one in bugs)])
    return True


def in_engines(run: Run, bugs: Sequence[Candidate], rights: Sequence[Right]) -> list[Wrong]:
    """Return the bugs in samplers of another order. Only where something is amiss: it takes long.

    They are as many to look at as if there were one for each right sampler.
    """
    orders = [one for one in rights if [edit.step for edit in one.edits] == ["rules.order"]]
    pairs = [(bug, one) for one in orders for bug in bugs]
    totals = likelihoods(run, [(*one.edits, bug.edit) for bug, one in pairs]).totals()
    least = needed(len(bugs) * len(rights))
    return [
        Wrong(bug, one, float(total), least)
        for (bug, one), total in zip(pairs, totals, strict=True)
    ]


def drawn_anyway(run: Run, mistakes: Sequence[Mistake]) -> Named | None:
    """Name the bug of a port that says it takes the largest logit, and draws instead."""
    forms = [one for one in candidates(mistakes) if one.edit.step == "settings"]
    base, *totals = likelihoods(run, [(), *((one.edit,) for one in forms)]).totals()
    wrong = [
        Wrong(one, Right(()), float(total), needed(len(forms)))
        for one, total in zip(forms, totals, strict=True)
    ]
    return named_bug(run, wrong, float(base))


def of_interest(one: Candidate) -> bool:
    return one.edit.step in SEEN or one.edit.step.startswith("rules")


def right_samplers(forms: Sequence[Candidate]) -> list[Right]:
    """Return ours, each convention, and each engine with what engines have by themselves."""
    known = [one for one in forms if one.mistake.convention and one.edit.step != "draw"]
    rules = [one for one in known if one.edit.step.startswith("rules")]
    defaults = [one for one in known if one.edit.step == "settings"]
    return [Right(()), *(Right((one,)) for one in known), *map(Right, product(rules, defaults))]


def strays(count: int) -> float:
    """Return what a right sampler loses of its likelihood to strays, at most."""
    return -count * float(np.log1p(-STRAY))


def best_right(totals: np.ndarray, rights: Sequence[Right]) -> Right:
    """Return ours, unless another right sampler is more likely by what it takes."""
    best = int(np.argmax(totals))
    return rights[best if totals[best] - totals[0] >= needed(len(rights)) else 0]


def named_bug(run: Run, wrong: Sequence[Wrong], base: float) -> Named | None:
    """Name the bug that makes an answer most likely, if by enough, and if it leaves nothing odd."""
    best = max(wrong, key=lambda one: one.total, default=None)
    count = len(run.steps())
    if best is None or not best.total - base - strays(count) >= best.least:
        return None
    if odd(run, best.edits, best.total, least=TIED):
        return None
    near = sorted(wrong, key=lambda one: -one.total)
    ties = dict.fromkeys(
        one.bug.mistake.id for one in near if best.total - one.total <= TIED
    )  # fmt: skip
    ties.pop(best.bug.mistake.id)
    outside = int((~likelihoods(run, [()]).inside[0]).sum())
    told = f"{count} choices, drawn with numbers that are not said; "
    told += f"{outside} of them could not be drawn, " if outside else "each could be drawn, "
    told += f"and with this they are 10^{(best.total - base) / np.log(10):.1f} times as likely"
    told += "".join(f", in an engine's order: {one.variant}" for one in best.within.which)
    return named(Fit((best.bug,), (tuple(ties),), None), "decoded", 0.0, told)[0]


def odd(run: Run, edits: Edits, base: float, *, least: float | None = None) -> str:
    """Say what makes an answer more likely than a sampler with `edits` does, "" if nothing.

    By the log of a factor of `least`, else by what it takes for a right sampler.
    """
    ways = [(*edits, hotter(by)) for by in HOTTER]
    totals = [*likelihoods(run, ways).totals(), anything(run)]
    best = int(np.argmax(totals))
    base += strays(len(run.steps()))
    if not totals[best] - base >= (needed(len(totals)) if least is None else least):
        return ""
    gain = (totals[best] - base) / np.log(10)
    what = "any id of the vocabulary were as likely" if best == len(HOTTER) else (
        f"the temperature were {HOTTER[best]:g} times what is said"
    )  # fmt: skip
    return f"the choices, drawn with numbers that are not said, would be 10^{gain:.1f} times as " \
           f"likely if {what}"  # fmt: skip


def anything(run: Run) -> float:
    return -float(sum(np.log(len(step.logits)) for step in run.steps()))


def hotter(by: float) -> Edit:
    def change(settings, said):
        return replace(settings, temperature=settings.temperature * by)

    return Edit("settings", change)


def how_likely(run: Run, ours: Right) -> str:
    count, surprise, expected, spread = surprises(run, ours.edits)
    return (
        f"drawn with numbers that are not said: judged by their likelihood; {count} choices "
        f"surprise by {surprise:.2f} each, expected were {expected:.2f} +- {spread:.2f}"
    )


def followed(ours: Right, found: Likely, forms: Sequence[Right]) -> list[str]:
    """Return a note for each convention of a right answer, with what is about as likely."""
    if not ours.which:
        return []
    totals = found.totals()
    gain = (totals[forms.index(ours)] - totals[0]) / np.log(10)
    least = totals[forms.index(ours)] - TIED
    near = [form for form, total in zip(forms, totals, strict=True) if total >= least]
    own = {one.mistake.id for one in ours.which}
    ties = dict.fromkeys(one.mistake.id for form in near for one in form.which)
    told = f"with this the choices are 10^{gain:.1f} times as likely"
    rest = ", ".join(id for id in ties if id not in own)
    told += f"; fits as well: {rest}" if rest else ""
    return [
        f"{one.mistake.id}: {one.mistake.wrong}{f' [{one.variant}]' if one.variant else ''}; {told}"
        for one in ours.which
    ]


def surprises(run: Run, edits: Edits) -> tuple[int, float, float, float]:
    """Return how many choices there are, the mean of their -ln p, what it should be, its spread."""
    sampler = Sampler(run.settings, None, edits)
    seen, means, variances = [], [], []
    for step in run.steps():
        known = {}
        chosen = run.answer[step.number - run.drawn]
        chance = chance_of(run, sampler, step, chosen, known) or 0.0
        parts = shares(sampler.cut_of(ranked_of(sampler, step, known), len(step.logits)))
        parts = parts[parts > 0]
        logs = -np.log(parts)
        seen.append(-np.log(max(chance, 1 / len(step.logits))))
        means.append((parts * logs).sum())
        variances.append((parts * logs**2).sum() - means[-1] ** 2)
    spread = np.sqrt(max(np.sum(variances), 0.0)) / len(seen)
    return len(seen), float(np.mean(seen)), float(np.mean(means)), float(spread)
