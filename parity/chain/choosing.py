"""Judge a port's choices by the logits that they were made from: which mistakes give them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.chain.drawing import drawn_anyway, judge_drawn
from lockstep.parity.chain.fitting import MOST_TRIED, Fit, best_fit, candidates
from lockstep.parity.chain.looping import judge_answer
from lockstep.parity.chain.named import named
from lockstep.parity.chain.replay import LOOSE, Run, missed
from lockstep.parity.chain.rows import rows_for
from lockstep.parity.chain.said import Said, temperature_of
from lockstep.parity.chain.sampler import Settings
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Unexplained
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.model import Model

NO_UNIFORMS = (
    "the choices are not judged: drawn with random numbers that are not said, in half precision, "
    "from logits that were not dumped"
)
SEVERAL = "the choices are not judged: steps were fed several tokens at once"
REFERENCE = "the choices are judged by the reference's logits: the port did not dump its own"
EXACT = ("float32", "float64")  # the reference's logits are near those of a port in these
BEFORE = ("chat", "text", "file", "backend", "encode", "ids")  # steps between text and ids
NO_ROWS = "the choices are not judged: there are no logits that one can be made from"
FEW_UNIFORMS = "the first {count} of {choices} choices are judged: there are no more uniforms"
FORMS = 100  # forms of mistakes, no fewer than there are
LEAST, CHANCE = 3, 0.01  # choices that name a mistake, and how often they may do so wrongly
WORK = 4e7  # logits looked at for pairs of mistakes


@np.errstate(all="ignore")  # a broken port may hold anything
def judge_choices(
    model: Model,
    dump: Dump,
    said: Said,
    mistakes: Sequence[Mistake],
    result: Diagnosis,
    mapped: Mapping[str, str],
) -> None:
    """Make the port's choices again, and name what makes them others.

    `mapped` gives the taps of names that a map file told.
    """
    if not said.tokens or not said.chooses:
        return
    if any(len(fed) != 1 for fed in dump.fed):
        result.conventions.append(SEVERAL)
        return
    run = Run(
        source=rows_for(model, dump, said, mapped),
        tokens=said.tokens,
        answer=said.answer,
        settings=settings_of(said),
        uniforms=said.uniforms,
        dtype=dtype_of(dump, result),
        fed=said.fed_else,
    )
    run = judge_answer(model, said, run, mistakes, result)
    drawn = bool(run.settings.temperature and not said.uniforms)
    if drawn and not run.source.own and run.dtype not in EXACT:
        result.conventions.append(NO_UNIFORMS)
        return
    if not run.source.own:
        result.conventions.append(REFERENCE)
    if drawn:
        if not judge_drawn(run, mistakes, result):
            result.conventions.append(NO_ROWS)
        return
    judge_run(with_uniforms(run, result), mistakes, result)


def with_uniforms(run: Run, result: Diagnosis) -> Run:
    """Return the choices that there are uniforms for, and say how many those are."""
    count = len(run.uniforms or ())
    if not run.settings.temperature or count >= len(run.answer):
        return run
    result.conventions.append(FEW_UNIFORMS.format(count=count, choices=len(run.answer)))
    return replace(run, answer=run.answer[:count])


def judge_run(run: Run, mistakes: Sequence[Mistake], result: Diagnosis) -> None:
    """Replay a run; name what explains every choice of it, or say where it parts."""
    right = run.replayed(()) or []
    if not right:
        result.conventions.append(NO_ROWS)
        return
    before = missed(right)
    fit = fitting(run, mistakes) if before else None
    looped = fit is not None and any(one.edit.step == "loop" for one in fit.chosen)
    good = not before or (fit is not None and all(one.mistake.convention for one in fit.chosen))
    result.stage("decoding" if looped else "sampling", len(right), right=good)
    if not before:
        return
    few = "" if fit is None else too_few(run, fit)
    if (few and not good) or fit is None:
        warm = drawn_anyway(run, mistakes) if may_be_drawn(run) else None
        if warm is not None:
            result.faults.append(replace(warm, residual_before=before))
            return
    if few and not good:
        told = f"{where_they_part(run, right)}; {few}"
        result.unexplained.append(Unexplained("decoded", before, 0.0, told))
        return
    if fit is None:
        result.unexplained.append(Unexplained("decoded", before, 0.0, where_they_part(run, right)))
        return
    told = counted_steps(run, right, fit) + (f"; {few}" if few else "")
    for bug, one in zip(named(fit, "decoded", before, told), fit.chosen, strict=True):
        if one.mistake.convention:
            ties = f"; fits as well: {', '.join(bug.also_fits)}" if bug.also_fits else ""
            form = f" [{bug.variant}]" if bug.variant else ""
            result.conventions.append(f"{bug.id}: {bug.wrong}{form}; {told}{ties}")
        else:
            result.faults.append(bug)


def may_be_drawn(run: Run) -> bool:
    """Say whether a port that says it takes the largest of its own logits may have drawn."""
    return run.settings.temperature == 0 and run.source.own and not run.uniforms


def too_few(run: Run, fit: Fit) -> str:
    """Return why choices are no evidence, "" if they are.

    A port that draws in a way of its own may hit on one of so many mistakes by chance, but not in
    many choices, nor in unlikely ones.
    """
    tried = MOST_TRIED if len(fit.chosen) > 1 else FORMS
    if run.surprise() >= np.log(tried / CHANCE) and len(run.steps()) >= LEAST:
        return ""
    ids = " and ".join(one.mistake.id for one in fit.chosen)
    return f"{ids} would give them all, but so few choices may do so by chance"


def fitting(run: Run, mistakes: Sequence[Mistake]) -> Fit | None:
    known = [one for one in candidates(mistakes) if one.edit.step not in ("answer", *BEFORE)]
    steps = run.steps()
    work = sum(len(step.logits) for step in steps)
    return best_fit(
        known,
        run.replayed,
        missed,
        together=may_go_together,
        most=int(WORK // max(work, 1)),
        explains=run.is_explained,
    )


def may_go_together(first: Edit, second: Edit) -> bool:
    return first.step != second.step


def dtype_of(dump: Dump, result: Diagnosis) -> str:
    """Return what a port computes in: what its tensors show, what it says, else float32."""
    said = dump.about.get("dtype")
    return result.dtype or (said if said is not None and said in LOOSE else "float32")


def settings_of(said: Said) -> Settings:
    """Return what a port samples with; 0 takes the largest logit."""
    known: dict[str, Any] = {
        name: value for name, value in (said.settings or {}).items()
        if name in Settings.__dataclass_fields__
    }  # fmt: skip
    known["temperature"] = temperature_of(said.settings)
    return Settings(**known, given=frozenset(said.settings or ()))


def counted_steps(run: Run, right: Sequence[tuple[int, int]], fit: Fit) -> str:
    """Say how many choices part from the reference's, and how many speak against the runner-up."""
    wrong = sum(ours != theirs for ours, theirs in right)
    text = f"{wrong} of {len(right)} choices are others than the reference's; "
    text += (
        f"with this, all {len(run.replayed([one.edit for one in fit.chosen]) or ())} are the port's"
    )
    if fit.rival is not None:
        against = round(fit.rival[1] * len(right))
        text += f", and {against} speak against the runner-up"
    return text


def where_they_part(run: Run, right: Sequence[tuple[int, int]]) -> str:
    at = next(at for at, (ours, theirs) in enumerate(right) if ours != theirs)
    ours, theirs = right[at]
    said = f"choice {at} is {theirs}, but should be {ours}"
    if not run.source.own:
        return f"{said}; dump the logits, which tell the model's bugs from the sampler's"
    return said
