"""How likely a sampler, right or wrong, makes the choices of a port, whatever it drew them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lockstep.parity.chain.replay import LOOSE, NUDGE, Run
from lockstep.parity.chain.sampler import (
    BORDERS,
    RIGHT,
    BestFirst,
    Sampler,
    Step,
    borders,
    drawn,
)
from lockstep.parity.faults.mistake import Edit
from lockstep.parity.progress import Progress
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling.candidates import Candidates, candidates, shares

STRAY = 1e-3  # how many choices are allowed to be any id: else one choice would rule all out
SEEN = ("row", "history", "penalties", "temperature", "top_k", "top_p", "min_p", "typical_p",
        "settings", "draw")  # steps whose edits change how likely a choice is  # fmt: skip
Array = np.ndarray


class Likely(NamedTuple):
    """For each form and choice: the log of its chance, strays included, and whether it has one."""

    logs: Array  # (forms, choices); -inf all over where a form cannot act
    inside: Array  # (forms, choices)

    def totals(self) -> Array:
        return self.logs.sum(axis=1)


@np.errstate(all="ignore")  # a broken port may hold anything
def likelihoods(run: Run, forms: Sequence[Sequence[Edit]]) -> Likely:
    """Return how likely each set of edits makes each choice.

    By STRAY of its mass a form draws any id. So it is a distribution still, and never rules a
    choice out.
    """
    steps = run.steps()
    samplers = [sampler_of(run, edits) for edits in forms]
    logs = np.zeros((len(forms), len(steps)))
    inside = np.ones((len(forms), len(steps)), dtype=bool)
    first = firsts(samplers)
    with Progress(len(steps)) as progress:
        for at, step in enumerate(steps):
            progress("how likely each choice is")
            known: dict[Any, Candidates] = {}  # of this step alone: a row is large
            chosen = run.answer[step.number - run.drawn]
            for number in sorted({*first}):
                sampler = samplers[number]
                chance = None if sampler is None else chance_of(run, sampler, step, chosen, known)
                if chance is None:
                    samplers[number], logs[number] = None, -np.inf
                    continue
                inside[number, at] = chance > 0
                logs[number, at] = np.log((1 - STRAY) * chance + STRAY / len(step.logits))
    return Likely(logs[first], inside[first])


def firsts(samplers: Sequence[Sampler | None]) -> list[int]:
    """Return for each sampler the first that does the same: it is asked once, as rows are large."""
    kinds = [None if one is None else kind_of(one) for one in samplers]
    return [kinds.index(kind) for kind in kinds]


def kind_of(sampler: Sampler) -> tuple[Any, ...]:
    """Return what a sampler's chances hang on: its parts, its settings, the rules that act."""
    s, rules, parts = sampler.settings, sampler.settings.rules, sampler.parts
    idle = {"temperature": s.temperature in (0, 1), "top_k": s.top_k == 0, "min_p": s.min_p == 0,
            **{name: s.share(name) == 1 for name in ("top_p", "typical_p")}}  # fmt: skip
    order = tuple(
        name for name in rules.order if not (idle[name] and parts[name] is RIGHT[name])
    )  # fmt: skip
    acting = replace(rules, name="", order=order, lacks=frozenset())
    return parts, replace(s, given=None, follows=acting, semantics="lockstep")


def sampler_of(run: Run, edits: Sequence[Edit]) -> Sampler | None:
    """Return a sampler, None if it is no other than the right one, or cannot be."""
    try:
        made = Sampler(run.settings, None, edits)
    except InputError:
        return None
    return made if not edits or acts(made, run) else None


def acts(sampler: Sampler, run: Run) -> bool:
    """Say whether a sampler may be another one than the right one, with its settings."""
    s = sampler.settings
    if s != run.settings:
        return True
    changed = {name for name, part in sampler.parts.items() if part is not RIGHT[name]}
    if not s.looks_back:
        changed -= {"history", "penalties"}
    if s.temperature == 0 and not s.rules.greedy_after_cuts:
        changed -= {"temperature", "top_k", *BORDERS}
    idle = {"top_k": s.top_k == 0, "min_p": s.min_p == 0,
            **{name: getattr(s, name) == 1 for name in ("top_p", "typical_p")}}  # fmt: skip
    return bool(changed - {name for name, off in idle.items() if off})


def chance_of(
    run: Run, sampler: Sampler, step: Step, chosen: int, known: dict[Any, Candidates]
) -> float | None:
    """Return how likely an id is, None where the sampler cannot draw.

    What rounding may have kept counts as kept.
    """
    loose = NUDGE if run.source.own else LOOSE[run.dtype]
    try:
        ranked = ranked_of(sampler, step, known)
        size = len(step.logits)
        for nudge in (0.0, loose, -loose) if borders(sampler.settings) else (0.0,):
            left = sampler.cut_of(ranked, size, nudge=nudge)
            chance = among(left, chosen, sampler, size)
            if sampler.settings.temperature and sampler.parts["draw"] is drawn:
                chance = shared(run, ranked, left, chosen, chance)
            if chance > 0:
                return chance
    except InputError:
        return None
    return 0.0


def ranked_of(sampler: Sampler, step: Step, known: dict[Any, Candidates]) -> Candidates:
    """Return all candidates after the penalties, best first, once for all who have the same."""
    s, parts = sampler.settings, sampler.parts
    key: tuple[Any, ...] = (id(parts["row"]), s.logit_bias)
    if s.looks_back:
        key += (id(parts["history"]), id(parts["penalties"]), s.window, s.rules.counts)
        key += (s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
    if key not in known:
        known[key] = BestFirst(*candidates(sampler.lowered(step)).best_first())
    return known[key]


def among(left: Candidates, chosen: int, sampler: Sampler, size: int) -> float:
    """Return the chance of an id among what is left."""
    if sampler.settings.temperature == 0:
        return float(sampler.parts["greedy"](left) == chosen)
    chances = getattr(sampler.parts["draw"], "chances", None)
    ids, parts = chances(left, size) if chances else (left.ids, shares(left))
    return float(parts[ids == chosen].sum())


def shared(run: Run, ranked: Candidates, left: Candidates, chosen: int, chance: float) -> float:
    """Return the chance of an id where it is as good as the least that is kept: equals share.

    Which of equals stay is nobody's mistake. Logits that are not the port's own are equal within
    what rounding makes of them.
    """
    if len(left.ids) == len(ranked.ids):
        return chance
    if run.source.own and np.diff(ranked.logits).all():
        return chance  # no two are equal
    kept = np.isin(ranked.ids, left.ids)
    least = ranked.logits[kept].min()
    size = 0.0 if run.source.own else np.sqrt(np.mean(ranked.logits**2))
    equal = np.abs(ranked.logits - least) <= LOOSE[run.dtype] * size
    if not (equal & (ranked.ids == chosen)).any() or (kept | ~equal).all():
        return chance
    return float(shares(left).min() * (kept & equal).sum() / equal.sum())
