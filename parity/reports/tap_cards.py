"""Each tap's figures and the histogram of its error, folded until they are asked for."""

from __future__ import annotations

import math

from lockstep.parity.cli.output import counted
from lockstep.parity.judging.histogram import BASE
from lockstep.parity.judging.result import Tap
from lockstep.parity.reports.markup import Markup, mono, prose, tag
from lockstep.parity.reports.summary import figure, plain

LEFT, WIDTH, HEIGHT, TOP = 48, 280, 84, 6  # of the drawing, in its own units
LOWEST, HIGHEST = -12, 4  # powers of ten on the scale


def card(number: int, tap: Tap) -> Markup:
    """Return a tap as a line that unfolds. The link of a cell leads inside, which unfolds it."""
    verdict = tag("span", tap.status, class_=f"status {tap.status.replace(' ', '-')}")
    summary = tag("summary", mono(tap.name), tag("span", figure(tap.rms_rel), class_="num"),
                  tag("span", plain(tap.ratio), class_="num"), verdict)  # fmt: skip
    body = tag("div", rows(tap), drawing(tap), id=f"tap-{number}", class_="card", tabindex="-1")
    return tag("details", summary, body)


def rows(tap: Tap) -> Markup:
    """Return the figures as a list of terms; those that are not known are left out."""
    gain = "" if tap.gain is None else f"{tap.gain:.6g}"
    cosine = "" if tap.cosine is None else f"{tap.cosine:.6g}"
    pairs = [
        ("status", tap.status),
        ("made by", tap.op or ""),
        ("shape", " × ".join(map(str, tap.shape[:8])) or "scalar"),
        ("accumulated error", known(tap.rms_rel)),
        ("largest difference", known(tap.max_abs)),
        ("own error", known(tap.own_error)),
        ("inherited error", known(tap.inherited_error)),
        ("noise", known(tap.noise)),
        ("own error ÷ noise", "" if tap.ratio is None else plain(tap.ratio)),
        ("gain, cosine", ", ".join(filter(None, (gain, cosine)))),
        ("where", tap.place or ""),
    ]
    shown = [tag("div", tag("dt", term), tag("dd", prose(said))) for term, said in pairs if said]
    return tag("dl", *shown)


def known(value: float | None) -> str:
    return "" if value is None else figure(value)


def drawing(tap: Tap) -> Markup:
    """Return the histogram with its scale, and the same in words."""
    spread = tap.histogram
    if spread is None:
        return tag("p", "No histogram: nothing to set its differences against.", class_="note")
    total = spread.zero + sum(spread.counts) + spread.not_finite
    said = in_words(spread.zero, spread.first, spread.counts, spread.not_finite, total)
    most = max((spread.zero, *spread.counts, 1))
    bars = [bar(LEFT - 44, 13, spread.zero / most, "zero")] if spread.zero else []
    bars += [bar(place(BASE ** (spread.first + i)), step() - 1.5, count / most, "bar")
             for i, count in enumerate(spread.counts) if count]  # fmt: skip
    picture = tag("svg", *scale(), *bars, viewBox=f"0 0 {LEFT + WIDTH + 8} {TOP + HEIGHT + 22}",
                  role="img", aria_label=said)  # fmt: skip
    title = tag("span", "|difference| over the size of what is right", class_="label")
    return tag("figure", picture, tag("figcaption", title, " ", said))


def bar(x: float, width: float, share: float, kind: str) -> Markup:
    height = max(1.0, share * HEIGHT)
    return tag("rect", x=f"{x:.1f}", y=f"{TOP + HEIGHT - height:.1f}", width=f"{width:.1f}",
               height=f"{height:.1f}", class_=kind)  # fmt: skip


def scale() -> list[Markup]:
    """Return the base line and a mark every four powers of ten."""
    low = TOP + HEIGHT
    line = tag("line", x1=LEFT - 46, x2=LEFT + WIDTH, y1=low + 0.5, y2=low + 0.5, class_="axis")
    marks = [tag("text", f"1e{power}" if power else "1", x=f"{place(10.0**power):.1f}", y=low + 16)
             for power in range(LOWEST, HIGHEST + 1, 4)]  # fmt: skip
    return [line, tag("text", "0", x=LEFT - 37.5, y=low + 16), *marks]


def place(value: float) -> float:
    """Return where a value stands on the logarithmic scale."""
    share = (math.log10(value) - LOWEST) / (HIGHEST + 1 - LOWEST)
    return LEFT + min(max(share, 0.0), 0.99) * WIDTH


def step() -> float:
    return math.log10(BASE) / (HIGHEST + 1 - LOWEST) * WIDTH


def in_words(
    zero: int, first: int, counts: tuple[int, ...], not_finite: int, total: int
) -> str:  # fmt: skip
    """Say the middle and the upper end of a histogram."""
    parts = [counted(total, "number")]
    if zero:
        parts.append(f"{zero:,} without a difference")
    if not_finite:
        parts.append(f"{not_finite:,} not finite")
    if any(counts):
        half, top = quantile(first, counts, 0.5), quantile(first, counts, 0.99)
        parts.append(f"of the rest half are below {half:.1e}, and 99 in 100 below {top:.1e}")
    return "; ".join(parts) + "."


def quantile(first: int, counts: tuple[int, ...], share: float) -> float:
    """Return the upper end of the bin in which a share of the numbers is reached."""
    wanted, seen = share * sum(counts), 0
    for index, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return float(BASE) ** (first + index + 1)
    return float(BASE) ** (first + len(counts))
