"""A comparison as a person reads it: the verdict, where it parts, and a line a layer."""

from lockstep.parity.cli.output import counted, printable, table
from lockstep.parity.judging.result import WRONG, Result, Tap
from lockstep.parity.naming.grouping import LAYER, grouped, named
from lockstep.parity.naming.names import is_tap
from lockstep.reference.checkpoint.errors import escape

LONGEST = 120  # lines of the table; beyond, only what is wrong is shown


def report(result: Result) -> str:
    """Return the report as text; nothing in it can steer a terminal, nor feign a line."""
    parts = [headline(result), where_it_parts(result), layers(result), remarks(result)]
    return printable("\n\n".join(part for part in parts if part))


def headline(result: Result) -> str:
    verdict = "PARITY" if result.first_divergence is None else "DIVERGED"
    sides = f"{verdict}  {escape(result.right)}  against  {escape(result.left)}"
    return f"{sides}\n{counted(result.compared, 'tap')} compared"


def where_it_parts(result: Result) -> str:
    """Say which tap is wrong first, by how much, what was allowed, and what still agreed."""
    first = result.first_divergence
    if first is None:
        return ""
    agreed = [tap.name for tap in result.taps[: result.taps.index(first)] if tap.status == "ok"]
    rows = [("first wrong", named(first.name) + (f"   made by {first.op}" if first.op else ""))]
    if first.place is not None:
        rows.append(("where", escape(first.place)))
    if first.ratio is not None:
        rows.append(("own error", f"{figure(first.own_error)} of its size"))
        rows.append(("noise", f"{figure(first.noise)}: what correct rounding shows here"))
        rows.append(("ratio", f"{first.ratio:.3g}"))
    elif first.rms_rel is not None:
        rows.append(("difference", f"{figure(first.rms_rel)} of its size"))
    if first.gain is not None and first.cosine is not None:
        rows.append(("gain, cosine", f"{first.gain:.6g}, {first.cosine:.6g}"))
    rows.append(("last right", named(agreed[-1]) if agreed else "nothing before it"))
    others = [tap.name for tap in result.taps if tap.status == first.status and tap is not first]
    if others:
        rows.append(("also wrong", grouped(others)))
    rows += [("wiring", escape(line.removeprefix("wiring: "))) for line in result.wiring]
    return table(rows)


def layers(result: Result) -> str:
    """Return a line a layer with its worst tap."""
    groups: dict[str, list[Tap]] = {}
    for tap in result.taps:
        found = LAYER.match(tap.name)
        groups.setdefault(found.group(1) if found else tap.name, []).append(tap)
    oracle = any(tap.ratio is not None for tap in result.taps)
    last = ("own error", "noise", "ratio", "inherited") if oracle else ("difference", "cosine")
    shown = [name for name, taps in groups.items() if status(taps) != "ok" or fits(groups)]
    rows = [("", *last, "worst tap", "")]
    for name in shown[:LONGEST]:
        worst = max(groups[name], key=badness)
        label = worst.name.removeprefix(name).lstrip(".") or "-"
        rows.append((named(name), *figures(worst, oracle), named(label), status(groups[name])))
    hidden = len(groups) - len(rows) + 1
    more = f"\n{counted(hidden, 'line')} more; those that are not ok come first"
    left_out = more if hidden else ""
    return table(rows, right=frozenset(range(1, 1 + len(last)))) + left_out


def fits(groups: dict[str, list[Tap]]) -> bool:
    return len(groups) <= LONGEST


def figures(tap: Tap, oracle: bool) -> tuple[str, ...]:
    if not oracle:
        return figure(tap.rms_rel), "-" if tap.cosine is None else f"{tap.cosine:.6f}"
    ratio = "-" if tap.ratio is None else f"{tap.ratio:.3g}"
    return figure(tap.own_error), figure(tap.noise), ratio, figure(tap.inherited_error)


def badness(tap: Tap) -> tuple[bool, float]:
    """Order taps by how wrong they are; what is not a number is worst."""
    if tap.status == "not judged":
        return False, -1.0
    value = tap.ratio if tap.ratio is not None else tap.rms_rel
    return tap.is_wrong, float("inf") if value is None or value != value else value


def status(taps: list[Tap]) -> str:
    found = {tap.status for tap in taps}
    order = (*WRONG, "inherited", "ok", "not judged")
    return next(name for name in order if name in found)


def remarks(result: Result) -> str:
    lines = [*map(escape, result.notes)]
    lines += [f"aligned: {escape(line)}" for line in result.conventions]
    if result.unmatched:
        alone = counted(result.unmatched, "tap is", "taps are")
        lines.append(f"{alone} on one side only, and not compared: {grouped(result.unmatched)}")
    return "\n".join([*lines, *unjudged(result)])


def unjudged(result: Result) -> list[str]:
    """Say what was not judged: tensors that are no taps, and taps, with the reason of the first."""
    found = [tap for tap in result.taps if tap.status == "not judged"]
    open_ = [tap for tap in found if is_tap(tap.name)]
    others = [tap.name for tap in found if not is_tap(tap.name)]
    lines = []
    if others:
        what = counted(others, "is not judged, since it is no tap",
                       "are not judged, since they are no taps")  # fmt: skip
        lines.append(f"{what}: {grouped(others)}")
    if open_:
        names, why = grouped([tap.name for tap in open_]), escape(open_[0].place or "")
        lines.append(f"{counted(open_, 'tap')} not judged: {names}: {why}")
    return lines


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
