"""Judge a dump against the torch modules of its model, where Lockstep has no file of its own.

Every module runs on the port's own values, so own and inherited error stand apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.parity.check import with_heritage
from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.batches_by_modules import judged_together, later_of, together
from lockstep.parity.diffing.one_prompt import Part, Progress, Prompt, is_wrong, part_of
from lockstep.parity.diffing.with_oracle import NO_TOKENS, against
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import is_tap, parted, step_of, tap_named, unwrapped
from lockstep.parity.torch_modules.batches import row_of
from lockstep.parity.torch_modules.loading import TorchModel, load, quiet
from lockstep.parity.torch_modules.survey import Survey, survey
from lockstep.parity.torch_modules.turns import said
from lockstep.parity.torch_modules.wiring import lines_of, wires
from lockstep.reference.checkpoint.errors import InputError

JUDGED_BY = "judged by the torch modules of transformers; noise is what {count} show: {names}"


def with_modules(
    result: Result,
    left: Dump,
    right: Dump,
    path: str | Path,
    tokens: list[int] | None,
    dtype: str,
    progress: Progress,
    rows: list[list[int]] | None = None,
) -> tuple[Alignment, Alignment]:
    """Judge every tap of `right` that a module of the model hands out; return how both align.

    `rows` are the prompts of a batch, each of which the modules run alone.
    Raises: InputError if the prompt is not known or the model cannot be loaded.
    """
    prompts = rows or [tokens or []]
    if not all(prompts):
        raise InputError(right.path, NO_TOKENS)
    padding = None if rows is None else Padding(tuple(map(len, rows)))
    later = later_of(left, right, len(prompts), rows is not None)
    last = last_step_reached(right, later[0], batch=rows is not None)
    with quiet(), np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        # What a broken port dumps may overflow anywhere.
        model, parts = load(path, dtype=dtype), []
        for row, prompt in enumerate(prompts):
            check_tokens(model, prompt, "the prompt")
            check_tokens(model, [token for one in later[row] for token in one], "decoded")
            found = survey(model.module, prompt, later[row], last)
            both = sides_of(left, right, found, padding, row)
            home = Path(folder) / str(row)
            parts.append(part_of(model, Prompt(found, both, home), progress))
        result.wiring = wiring(model, parts)
        sides, taps = parts[0].sides, parts[0].taps
        if padding is not None:
            sides = together(parts, padding, left, right)
            taps = list(judged_together(parts, sides[1], padding, model.dtype))
        told = (*sides[1].told, *said([part.turns for part in parts]))
        sides = sides[0], replace(sides[1], told=told)
        for number in range(last + 1):
            of_step = [against(tap, sides[0], fit(sides[1], tap), padding)
                       for tap in taps if step_of(tap.name) == number]  # fmt: skip
            result.taps += with_heritage(of_step, result.first_divergence)
    ways = list(parts[0].replay.ways)
    by = JUDGED_BY.format(count=counted(ways, "legal way"), names=", ".join(ways))
    result.notes += [by, *model.warnings]
    return sides


def wiring(model: TorchModel, parts: Sequence[Part]) -> list[str]:
    """Say which modules are fed with another value than they should be, by the first wrong row."""
    for part in parts:
        if wrong := [tap.name for tap in part.taps if is_wrong(tap) and tap.ratio is not None]:
            return lines_of(wires(model, part.found, part.sides[1], part.replay, wrong))
    return []


def sides_of(
    left: Dump, right: Dump, found: Survey, padding: Padding | None, row: int
) -> tuple[Alignment, Alignment]:
    """Align both sides, and of a batch take a row. One that says no batch is like the other."""
    ours, theirs = aligned(left, found), aligned(right, found)
    if padding is None:
        return ours, theirs
    said = left if left.batch else right, right if right.batch else left
    return row_of(ours, said[0], padding, row), row_of(theirs, said[1], padding, row)


def check_tokens(model: TorchModel, tokens: list[int], whose: str) -> None:
    """Raise InputError if a token is beyond the vocabulary."""
    size = model.sizes.vocab_size
    for place, token in enumerate(tokens):
        if token >= size:
            where = f"token {place} of {whose}"
            raise InputError(model.path, f"token id {token}, but should be 0..{size - 1}", where)


def last_step_reached(right: Dump, later: list[list[int]], *, batch: bool) -> int:
    """Return the last step of a dump. Raises InputError if nobody says how to reach it.

    A row that is run alone would choose its own way, so of a batch all steps must be said.
    """
    steps = {step_of(name) for name in right.shapes}
    reached = len(later) if batch else max(len(later), len(steps - {0}))
    if max(steps) > reached:
        what = f"holds step {max(steps)}, but only {reached} of the steps before it"
        key = "batch_decoded" if batch else "decoded"
        raise InputError(right.path, f"{what}; say what was fed, in the metadata: {key}")
    return max(steps)


def aligned(dump: Dump, found: Survey) -> Alignment:
    """Map the names of a dump onto the modules of a model.

    A module that hands on another's value means that one, whose own name wins.
    """
    names: dict[str, str] = {}
    for name in dump.shapes:
        tap = module_named(name, found)
        if tap not in names or parted(name)[1] == parted(tap)[1]:
            names[tap] = name
    renamed = sum(tap != name for tap, name in names.items())
    return Alignment(dump, names, renamed)


def module_named(name: str, found: Survey) -> str:
    """Return the tap of a dumped name: a module's path, or whatever other engines call it."""
    once = name.removesuffix("@1")  # a capture counts from 1 where a module ran more than once
    for known in (name, unwrapped(name), tap_named(name), once, unwrapped(once)):
        step, path = parted(known)
        tap = found.aliases.get(step + path, step + path)
        if tap in found.shapes:
            return tap
    return tap_named(name) if is_tap(tap_named(name)) else name


def fit(right: Alignment, tap: Tap) -> np.ndarray | None:
    """Return the port's value of a tap that was judged by its numbers."""
    return None if tap.ratio is None else right.read(tap.name, tap.shape)
