"""What every report says first: the verdict, and the list of what to fix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.parity.cli.output import counted
from lockstep.parity.explaining.said.diagnosis import STAGES, Named
from lockstep.parity.explaining.said.report import how_much
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.grouping import LAYER, grouped, kind, layers_said
from lockstep.parity.reports.document import Document

NO_ORACLE = "without --model, own and inherited error are not told apart: begin with the first"


@dataclass(frozen=True)
class Fix:
    """One thing to do: what is wrong, where, what to do about it, and why that is said."""

    title: str
    where: str
    text: str
    why: tuple[tuple[str, str], ...]
    taps: tuple[str, ...]
    sure: float | None = None


def headline(document: Document) -> str:
    """Return the verdict in a few words."""
    if document.command != "explain":
        return "Parity" if document.good else "Diverged"
    if document.faults:
        return f"{counted(document.faults, 'bug')} named"
    return {"clean": "Clean", "faults": "Faults", "unknown": "Wrong, without a name"}[
        document.verdict
    ]


def sentence(document: Document) -> str:
    """Say in one line what the verdict rests on."""
    parts = [f"{counted(document.compared, 'tap')} compared"]
    if document.command == "explain":
        parts = [how_much(document.compared, len(document.unmatched))]
    if document.stages:
        parts = [
            f"{STAGES.get(name, name)}: {counted(count, 'tap' if name == 'model' else 'id')}, "
            f"{'right' if right else 'wrong'}"
            for name, count, right in document.stages
        ]
    if document.dtype:
        parts.append(f"computed in {document.dtype}")
    wrong = [tap for tap in document.taps if tap.is_wrong]
    if document.command != "explain" and wrong:
        parts.append(f"{len(wrong)} wrong, first {wrong[0].name}")
    if document.unexplained:
        parts.append(f"{counted(document.unexplained, 'wrong tap')} unexplained")
    return "; ".join(parts)


def fixes(document: Document) -> list[Fix]:
    """Return what to fix, in order: files first, bugs with a name, then what has none."""
    files = [Fix(one.title, "", one.fix or one.text, (("found", one.text),), ())
             for one in document.files]  # fmt: skip
    if document.command == "explain":
        return [*files, *map(of_fault, document.faults), *of_unexplained(document)]
    return of_taps(document)


def of_fault(fault: Named) -> Fix:
    left = f"{figure(fault.residual_before)}, with this bug in the reference "
    why = [
        ("the port", fault.wrong + (f"  [{fault.variant}]" if fault.variant else "")),
        ("should be", fault.right),
        ("put into", grouped(fault.put_into)),
        ("counted", fault.seen) if fault.seen else
        ("own error", f"{left}{figure(fault.residual_after)}; noise {figure(fault.noise)}"),
    ]  # fmt: skip
    if fault.votes:
        counts = (f"{counted(fault.votes['fault'], 'number')} as with this bug, "
                  f"{fault.votes['right']} as without")  # fmt: skip
        why.append(("where they round apart", counts))
    if fault.runner_up:
        rival = fault.runner_up
        why.append(("runner-up", f"{rival['id']}, which leaves {figure(rival['residual'])}"))
    if fault.also_fits:
        why.append(("fits as well", ", ".join(fault.also_fits)))
    return Fix(fault.id, layers_said(fault.layers), fault.fix, tuple(row for row in why if row[1]),
               tuple(fault.taps), fault.confidence)  # fmt: skip


def of_unexplained(document: Document) -> list[Fix]:
    return [
        Fix(f"unexplained: {one.tap}", "", "wrong, and like no bug that is known",
            (("own error", f"{figure(one.own_error)}; noise {figure(one.noise)}"),
             *[("its shape", one.shape)] * bool(one.shape)), ())
        for one in document.unexplained
    ]  # fmt: skip


def of_taps(document: Document) -> list[Fix]:
    """Return a fix for each kind of tap that is wrong in itself; without an oracle the first."""
    wrong = [tap for tap in document.taps if tap.is_wrong]
    if any(tap.status == "differs" for tap in wrong):
        return [of_tap(wrong[:1], NO_ORACLE)]
    kinds: dict[str, list[Tap]] = {}
    for tap in wrong:
        kinds.setdefault(kind(tap.name), []).append(tap)
    return [of_tap(taps, "what goes in is right enough; what comes out is not")
            for taps in kinds.values()]  # fmt: skip


def of_tap(taps: Sequence[Tap], text: str) -> Fix:
    first = taps[0]
    found = [int(layer) for tap in taps if (layer := layer_of(tap.name)) is not None]
    why = [("made by", first.op or ""), ("where", first.place or "")]
    if first.ratio is not None:
        noise = f"{figure(first.own_error)}; noise {figure(first.noise)}"
        why.append(("own error", f"{noise}, ratio {plain(first.ratio)}"))
    elif first.rms_rel is not None:
        why.append(("difference", f"{figure(first.rms_rel)} of its size"))
    if first.gain is not None and first.cosine is not None:
        why.append(("gain, cosine", f"{first.gain:.6g}, {first.cosine:.6g}"))
    title = first.name if len(taps) == 1 else kind(first.name)
    return Fix(title, layers_said(sorted({*found})), text, tuple(row for row in why if row[1]),
               tuple(tap.name for tap in taps))  # fmt: skip


def layer_of(name: str) -> str | None:
    """Return the number of a tap's layer, at most nine digits of it."""
    found = LAYER.match(name)
    return found[1].rpartition(".")[2][:9] if found else None


def figure(value: float | None) -> str:
    """Return an error: `2.3e-07`, or `-` where there is none."""
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def plain(value: float | None) -> str:
    """Return a ratio: `0.5`, `12`, `3e+07`."""
    if value is None:
        return "-"
    return f"{value:.2g}" if not math.isfinite(value) or value < 1000 else f"{value:.0e}"
