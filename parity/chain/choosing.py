"""Judge a port's choices by the logits that they were made from: which mistakes give them all."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.parity.chain.fitting import Fit, best_fit, candidates
from lockstep.parity.chain.looping import judge_answer
from lockstep.parity.chain.named import named
from lockstep.parity.chain.replay import LOOSE, Run, missed
from lockstep.parity.chain.rows import rows_for
from lockstep.parity.chain.said import Said
from lockstep.parity.chain.sampler import Settings
from lockstep.parity.dump import Dump
from lockstep.parity.explaining.diagnosis import Diagnosis, Unexplained
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.model import Model

NO_UNIFORMS = "the choices are not judged: drawn at a temperature, and no uniforms are said"
SEVERAL = "the choices are not judged: steps were fed several tokens at once"
REFERENCE = "the choices are judged by the reference's logits: the port did not dump its own"
BEFORE = ("chat", "text", "file", "backend", "encode", "ids")  # steps between text and ids
WORK = 4e7  # logits looked at for pairs of mistakes


def judge_choices(
    model: Model, dump: Dump, said: Said, mistakes: Sequence[Mistake], result: Diagnosis
) -> None:
    """Make the port's choices again, and name what makes them others."""
    if not said.tokens or not said.chooses:
        return
    if any(len(fed) != 1 for fed in dump.fed):
        result.conventions.append(SEVERAL)
        return
    answer = judge_answer(model, said, mistakes, result)
    settings = settings_of(said)
    if settings.temperature and said.uniforms is None:
        result.conventions.append(NO_UNIFORMS)
        return
    run = Run(
        source=rows_for(model, dump, said),
        tokens=said.tokens,
        answer=answer,
        settings=settings,
        uniforms=said.uniforms,
        dtype=dtype_of(dump, result),
        fed=said.fed_else,
    )
    if not run.source.own:
        result.conventions.append(REFERENCE)
    judge_run(run, mistakes, result)


def judge_run(run: Run, mistakes: Sequence[Mistake], result: Diagnosis) -> None:
    """Replay a run; name what explains every choice of it, or say where it parts."""
    right = run.replayed(()) or []
    if not right:
        return
    before = missed(right)
    fit = fitting(run, mistakes) if before else None
    looped = fit is not None and any(one.edit.step == "loop" for one in fit.chosen)
    good = not before or (fit is not None and all(one.mistake.convention for one in fit.chosen))
    result.stage("decoding" if looped else "sampling", len(right), right=good)
    if not before:
        return
    if fit is None:
        result.unexplained.append(Unexplained("decoded", before, 0.0, where_they_part(run, right)))
        return
    told = counted_steps(run, right, fit)
    for bug, one in zip(named(fit, "decoded", before, told), fit.chosen, strict=True):
        if one.mistake.convention:
            ties = f"; fits as well: {', '.join(bug.also_fits)}" if bug.also_fits else ""
            form = f" [{bug.variant}]" if bug.variant else ""
            result.conventions.append(f"{bug.id}: {bug.wrong}{form}; {told}{ties}")
        else:
            result.faults.append(bug)


def fitting(run: Run, mistakes: Sequence[Mistake]) -> Fit | None:
    known = [one for one in candidates(mistakes) if one.edit.step not in ("answer", *BEFORE)]
    steps = run.steps()
    work = sum(len(step.logits) for step in steps)
    return best_fit(
        known, run.replayed, missed, together=may_go_together, most=int(WORK // max(work, 1))
    )


def may_go_together(first: Edit, second: Edit) -> bool:
    return first.step != second.step


def dtype_of(dump: Dump, result: Diagnosis) -> str:
    """Return what a port computes in: what its tensors show, what it says, else float32."""
    said = dump.about.get("dtype")
    return result.dtype or (said if said is not None and said in LOOSE else "float32")


def settings_of(said: Said) -> Settings:
    """Return what a port samples with; without `do_sample` it takes the largest logit."""
    known = {
        name: value for name, value in (said.settings or {}).items()
        if name in Settings.__dataclass_fields__
    }  # fmt: skip
    if (said.settings or {}).get("do_sample") is False:
        known["temperature"] = 0.0
    return Settings(**known)


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
