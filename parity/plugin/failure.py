"""What a failed test prints: what is wrong first, by how much, what was allowed, what was right."""

from __future__ import annotations

import textwrap
from math import prod
from pathlib import Path

from lockstep.parity.cli.output import counted, folded, printable, table
from lockstep.parity.diffing.plain import rounding
from lockstep.parity.explaining.said import report as explained
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.judging.judge import LIMITS
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.grouping import LAYER, grouped, named
from lockstep.parity.plugin.shelf import shown
from lockstep.parity.reports.terminal import figure
from lockstep.reference.checkpoint.errors import clip_end, escape

WIDTH = 96
FIRST = "first at "
LISTED = 6


def of_parity(result: Result, first: Tap, dtype: str) -> str:
    """Return the text of a comparison that fails at `first` and was judged in `dtype`."""
    head = f"{escape(result.right)} parts from {escape(result.left)} at {named(first.name)}"
    rows = [*about(first, dtype), *around(first, result)]
    lines = [head, laid_out(rows), *wrapped(result.notes)]
    return printable("\n".join(line for line in lines if line))


def about(tap: Tap, dtype: str) -> list[tuple[str, str]]:
    """Return what is known of one wrong tap: operation, layer, place, figures with their limits."""
    rows = [("op", tap.op)] if tap.op else []
    found = LAYER.match(tap.name)
    if found:
        rows.append(("layer", found.group(1).rpartition(".")[2]))
    if tap.place is not None:
        at_first = tap.place.startswith(FIRST)
        rows.append(("first bad" if at_first else "where", escape(tap.place.removeprefix(FIRST))))
    if tap.ratio is not None:
        rows += against_noise(tap, dtype)
    elif tap.rms_rel is not None:
        allowed = f"up to {figure(rounding(dtype))} allowed in {dtype}"
        rows.append(("difference", f"{figure(tap.rms_rel)} of its size ({allowed})"))
    if tap.gain is not None and tap.cosine is not None:
        rows.append(("gain, cosine", f"{tap.gain:.6g}, {tap.cosine:.6g}"))
    return rows


def against_noise(tap: Tap, dtype: str) -> list[tuple[str, str]]:
    """Return own error over noise in the measures that failed, each with what was allowed."""
    limits = LIMITS[dtype]
    measures = [
        ("over all", tap.ratio, limits.over(prod(tap.shape[:-1]))),
        ("in the worst row", tap.row_ratio, limits.row),
        ("in the worst number", tap.cell_ratio, limits.cell),
    ]
    said = [
        f"{ratio:.3g} times that {where} (up to {limit:.3g} allowed)"
        for where, ratio, limit in measures
        if ratio is not None and not ratio <= limit
    ]
    own = f"{figure(tap.own_error)} of its size, where rounding makes {figure(tap.noise)}"
    return [("own error", own), *(("", line) for line in said)]


def around(first: Tap, result: Result) -> list[tuple[str, str]]:
    """Return what agreed before a wrong tap, and what else is wrong."""
    before = result.taps[: result.taps.index(first)]
    agreed = [tap.name for tap in before if tap.status == "ok"]
    rows = [("last right", named(agreed[-1]) if agreed else "nothing before it")]
    others = [tap.name for tap in result.taps if tap.is_wrong and tap is not first]
    if others:
        rows.append(("also wrong", grouped(others)))
    return [*rows, ("compared", counted(result.compared, "tensor"))]


def laid_out(rows: list[tuple[str, str]]) -> str:
    """Return a table whose second column goes on in the next line where it is long."""
    widest = WIDTH - 2 - max((len(label) for label, _ in rows), default=0)
    lines: list[tuple[str, str]] = []
    for label, text in rows:
        first, *more = textwrap.wrap(text, widest, break_long_words=False) or [""]
        lines += [(label, first), *(("", line) for line in more)]
    return table(lines)


def wrapped(lines: list[str]) -> list[str]:
    return [textwrap.fill(escape(line), WIDTH, subsequent_indent="  ") for line in lines]


def of_golden(result: Result, dtype: str, how: str) -> str:
    """Return the text of a run that is no longer what its golden says."""
    first = result.first_divergence
    wrong = sum(tap.is_wrong for tap in result.taps)
    head = f"{wrong} of {counted(result.taps, 'tensor')} differ from the golden"
    if first is None:
        head = "the run is another one than that of the golden"
    rows = [("first wrong", named(first.name)), *about(first, dtype)] if first else []
    rows += around(first, result) if first else []
    rows.append(("golden", shown(Path(result.left))))
    lines = [head, *wrapped(result.notes), laid_out(rows), how]
    return printable("\n".join(lines))


def folded_fixes(found: Diagnosis) -> str:
    return "\n".join(folded(line, WIDTH) for line in explained.fixes(found).splitlines())


def unknowns(found: Diagnosis) -> str:
    """List what is wrong and has no name, the first of many."""
    head, *lines = explained.unknowns(found).split("\n")
    more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join(clip_end(line, WIDTH) for line in [head, *lines[:LISTED], *more])


def of_diagnosis(found: Diagnosis, first: Tap | None, whole: Result | None, dtype: str) -> str:
    """Return the text of a port that is not clean: its bugs with their fixes, then the figures."""
    rows = [("first wrong", named(first.name)), *about(first, dtype)] if first else []
    rows += around(first, whole)[:1] if first and whole else []
    parts = [explained.headline(found), explained.files(found), folded_fixes(found)]
    parts += [unknowns(found), laid_out(rows)]
    again = f"lockstep explain {escape(found.model)} {clip_end(escape(found.dump), 200)}"
    parts.append(f"more: {again}" if found.dump and "/" in found.dump else "")
    return printable("\n".join(part for part in parts if part))
