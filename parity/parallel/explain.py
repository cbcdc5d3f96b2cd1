"""`explain` of the dumps of ranks: bugs of ranks first, then all others, in what they make up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.parity.chain.chain import Chain
from lockstep.parity.diffing.plain import rounding
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.before import config_findings, weight_findings
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Unexplained
from lockstep.parity.naming.names import step_of
from lockstep.parity.naming.plan import known_taps
from lockstep.parity.parallel.forced import (
    PARTS,
    WHOLE,
    Judge,
    base,
    failing,
    judged_run,
    moved,
    readings,
    size,
)  # fmt: skip
from lockstep.parity.parallel.merged import Merged, plans_for
from lockstep.parity.parallel.naming import Tries, found_in, instead, named
from lockstep.parity.parallel.other_model import other_than_dealt_out
from lockstep.parity.parallel.parts_noise import without_rounded_parts
from lockstep.parity.parallel.ranks import Ranks, dtype_of, fed_of, prompt_of, ranks_of
from lockstep.parity.parallel.shapes import shapes_of_ranks
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from lockstep.reference.parallel.model import ParallelModel

Progress = Callable[[str], None]
Doubt = Callable[[str], None]
APART = (
    "the ranks do not agree on {tap}, which they should have alike: only bugs of ranks were looked "
    "for, others show when these are mended"
)
ENOUGH = "bugs of ranks explain all that is wrong: others are looked for when these are mended"


def explain_ranks(
    model: Model,
    dumps: Sequence[Dump],
    *,
    path: str | Path,
    tokens: Sequence[int] | None = None,
    dtype: str | None = None,
    names: str | Path | None = None,
    progress: Progress = lambda name: None,
    doubt: Doubt = lambda line: None,
    **told: Any,
) -> Diagnosis:
    """Return every bug of a port that is dealt out to ranks, from what each rank dumped.

    `model` is the reference model that was ported, `dumps` has the ranks' in their order, `path`
    says where they lie. What `told` and the others mean is said at `explain`.
    Raises: InputError if the model cannot be dealt out so, if the dumps say different prompts, or
    if nothing in them can be compared.
    """
    began = time.perf_counter()
    prompt = prompt_of(dumps, tokens)
    ranks = ranks_of(
        dumps, shapes_of_ranks(model.checkpoint, len(dumps), length=len(prompt)), names
    )
    fed, parted = fed_of(dumps, ranks.steps)
    dtype, found_out = (dtype, []) if dtype else dtype_of(dumps)
    tries = tries_of(model, ranks, [prompt, *fed], dtype)
    right = tries.right
    check_compared(right, ranks, path)
    other = other_than_dealt_out(ranks, right.shapes, model.checkpoint.path.name)
    for line in [] if names is not None else other:
        doubt(line)
    found = found_in(tries)
    mended = {tap for one in found for tap in one.mends}
    bugs = [named(one, right) for one in found]
    merged = merged_of(model, ranks, right, prompt)
    whole = merged.dump(Path(path), said_by_all(dumps))
    enough = bool(found) and failing(right.taps).keys() <= mended
    if right.apart or parted or enough or not merged.plans:
        result = Diagnosis(model=str(model.checkpoint.path), dump=str(path), dtype=dtype)
        before_tensors(result, model, whole, tokens, **told)
        alone(result, right, mended, parted, enough)
    else:
        given: dict[str, Any] = {"tokens": tokens, "dtype": dtype, "progress": progress}
        given |= {} if other else {"doubt": doubt}
        result = beside(explain(model, whole, **given, **told), mended, str(path))
        without_rounded_parts(result, tries.reference, ranks, tries.passes, right)
        result.unexplained += lost(right, merged, mended)
        bugs += instead(result, tries)
    result.faults = [*bugs, *result.faults]
    told_first = [*([] if found else moved(right)), *said_of(right, bugs), *found_out, *ranks.plan]
    result.conventions = [*told_first, *result.conventions]
    count(result, ranks, right)
    result.seconds = time.perf_counter() - began
    return result


def tries_of(model: Model, ranks: Ranks, passes: list[Any], dtype: str) -> Tries:
    """Deal the model out to as many ranks, and judge what each of them dumped."""
    dealt_out = ParallelModel(model.checkpoint, ranks=len(ranks.sides), dtype=dtype, ops=model.ops)
    dealt_out.adapters = model.adapters
    return Tries(dealt_out, ranks, passes, judged_run(dealt_out, ranks, passes))


def before_tensors(
    result: Diagnosis,
    model: Model,
    whole: Dump,
    tokens: Sequence[int] | None,
    *,
    config: str | Path | None = None,
    weights: str | Path | None = None,
    prompt: str | None = None,
    chat: bool = False,
    **_: Any,
) -> None:
    """Say what the port's files and the text of its prompt have of wrong."""
    result.config += config_findings(model, config)
    result.weights += weight_findings(model, weights, result)
    Chain(model, whole, tokens=tokens, prompt=prompt, chat=chat).before(result)


def count(result: Diagnosis, ranks: Ranks, right: Judge) -> None:
    """Say how much was compared, and what of the dumps was not."""
    judged = {base(tap.name) for tap in right.taps if tap.status != "not judged"}
    result.compared = max(result.compared, len(judged))
    result.unmatched = unmatched(ranks, right)


def check_compared(right: Judge, ranks: Ranks, path: str | Path) -> None:
    """Raises: InputError if a rank has nothing that could be compared."""
    for rank, side in enumerate(ranks.sides):
        if not any(name in right.shapes for name in side.names):
            raise InputError(path, f"nothing of rank {rank} can be compared: no tap is in its dump")


def said_by_all(dumps: Sequence[Dump]) -> dict[str, str]:
    """Return what the dumps say beside their tensors; the first one's word goes first."""
    return {key: said for dump in reversed(dumps) for key, said in dump.about.items()}


def merged_of(model: Model, ranks: Ranks, right: Judge, prompt: list[int]) -> Merged:
    """Return the whole model's dump, which the ranks' make up, before it is read."""
    whole = known_taps(model.checkpoint, length=len(prompt))
    parts = frozenset(tap for tap, how in right.read_as.items() if how != WHOLE)
    return Merged(ranks, plans_for(ranks, right.shapes, whole, parts))


def unmended(right: Judge, mended: set[str]) -> list[Unexplained]:
    """Return what is wrong on a rank, judged by itself, and explained by no bug of ranks."""
    noise = rounding(right.dtype)
    return [Unexplained(name, size(tap), noise, tap.place or "")
            for name, tap in failing(right.taps).items() if name not in mended]  # fmt: skip


def lost(right: Judge, merged: Merged, mended: set[str]) -> list[Unexplained]:
    """Return what is wrong on a rank and is in no dump of the whole: it cannot be put together."""
    return [one for one in unmended(right, mended) if one.tap not in merged.plans]


def alone(result: Diagnosis, right: Judge, mended: set[str], parted: str, enough: bool) -> None:
    """Report by the ranks alone: what no bug of ranks explains is unexplained."""
    result.unexplained += unmended(right, mended)
    result.steps = len({step_of(tap.name) for tap in right.taps}) - 1
    result.taps = [replace(tap, status="diverged") if tap.status == "differs" else tap
                   for tap in right.taps]  # fmt: skip
    if right.apart:
        result.conventions.append(APART.format(tap=right.apart[0]))
    elif enough and not parted:
        result.conventions.append(ENOUGH)
    if parted:
        result.unexplained.append(Unexplained("decoded", 1.0, 0.0, parted))


def beside(found: Diagnosis, mended: set[str], path: str) -> Diagnosis:
    """Return a diagnosis of the whole without what bugs of ranks explain already."""
    found.faults = [one for one in found.faults if not set(one.taps) <= mended or not one.taps]
    found.unexplained = [one for one in found.unexplained if one.tap not in mended]
    found.dump = path
    return found


def said_of(right: Judge, bugs: Sequence[Any]) -> list[str]:
    """Return how taps were read; what a missing sum leaves is no way of dumping."""
    unsummed = any(bug.id == "tp-allreduce-missing" for bug in bugs)
    return [line for line in readings(right) if not (unsummed and PARTS in line)]


def unmatched(ranks: Ranks, right: Judge) -> list[str]:
    """Return what was dumped and no tap of the model is, by its dumped name."""
    return sorted({side.names[tap] for side in ranks.sides for tap in side.names
                   if tap not in right.shapes})  # fmt: skip
