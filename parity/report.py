"""A comparison as a person reads it: the verdict, where it parts, and a line a layer."""

import re

from lockstep.parity.cli.output import printable, table
from lockstep.parity.result import Result, Tap

LAYER = re.compile(r"((?:step\.\d+/)?model\.layers\.\d+)(\.|$)")
HIDDEN = 6  # names of taps without a partner that are listed


def report(result: Result) -> str:
    """Return the report as text; nothing in it can steer a terminal."""
    parts = [headline(result), where_it_parts(result), layers(result), remarks(result)]
    return printable("\n\n".join(part for part in parts if part))


def headline(result: Result) -> str:
    verdict = "PARITY" if result.first_divergence is None else "DIVERGED"
    return f"{verdict}  {result.right}  against  {result.left}\n{len(result.taps)} taps compared"


def where_it_parts(result: Result) -> str:
    """Say which tap is wrong first, by how much, what was allowed, and what still agreed."""
    first = result.first_divergence
    if first is None:
        return ""
    agreed = [tap.name for tap in result.taps[: result.taps.index(first)] if tap.status == "ok"]
    rows = [("first wrong", first.name + (f"   made by {first.op}" if first.op else ""))]
    if first.place is not None:
        rows.append(("where", first.place))
    if first.ratio is not None:
        rows.append(("own error", f"{figure(first.own_error)} of its size"))
        rows.append(("noise", f"{figure(first.noise)}: what correct rounding shows here"))
        rows.append(("ratio", f"{first.ratio:.3g}"))
    elif first.rms_rel is not None:
        rows.append(("difference", f"{figure(first.rms_rel)} of its size"))
    if first.gain is not None:
        rows.append(("gain, cosine", f"{first.gain:.6g}, {first.cosine:.6g}"))
    rows.append(("last right", agreed[-1] if agreed else "nothing before it"))
    others = [tap for tap in result.taps if tap.status == first.status and tap is not first]
    if others:
        rows.append(("also wrong", ", ".join(tap.name for tap in others[:4]) + more(others[4:])))
    return table(rows)


def layers(result: Result) -> str:
    """Return a line a layer with its worst tap."""
    groups: dict[str, list[Tap]] = {}
    for tap in result.taps:
        found = LAYER.match(tap.name)
        groups.setdefault(found.group(1) if found else tap.name, []).append(tap)
    oracle = any(tap.ratio is not None for tap in result.taps)
    last = ("own error", "noise", "ratio", "inherited") if oracle else ("rms", "cosine")
    rows = [("", *last, "worst tap", "")]
    for name, taps in groups.items():
        worst = max(taps, key=badness)
        label = worst.name.removeprefix(name).lstrip(".") or "-"
        rows.append((name, *figures(worst, oracle), label, status(taps)))
    return table(rows, right=frozenset(range(1, 1 + len(last))))


def figures(tap: Tap, oracle: bool) -> tuple[str, ...]:
    if not oracle:
        return figure(tap.rms_rel), "-" if tap.cosine is None else f"{tap.cosine:.6f}"
    ratio = "-" if tap.ratio is None else f"{tap.ratio:.3g}"
    return figure(tap.own_error), figure(tap.noise), ratio, figure(tap.inherited_error)


def badness(tap: Tap) -> tuple[bool, float]:
    """Order taps by how wrong they are; what is not a number is worst."""
    value = tap.ratio if tap.ratio is not None else tap.rms_rel
    wrong = tap.status in ("diverged", "differs")
    return wrong, float("inf") if value is None or value != value else value


def status(taps: list[Tap]) -> str:
    found = {tap.status for tap in taps}
    return next((name for name in ("diverged", "differs", "inherited") if name in found), "ok")


def remarks(result: Result) -> str:
    lines = [*result.notes, *(f"aligned: {line}" for line in result.conventions)]
    if result.unmatched:
        kinds = sorted({name.rpartition(".")[2] for name in result.unmatched})
        named = ", ".join(kinds[:HIDDEN]) + more(kinds[HIDDEN:])
        lines.append(f"{len(result.unmatched)} taps are on one side only: {named}")
    return "\n".join(lines)


def more(rest: list) -> str:
    return f" and {len(rest)} more" if rest else ""


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
