"""What `bench` found as one SVG picture: a bar for each engine, phase and prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lockstep.parity.bench.choice import THEIRS

LABEL, PANEL, BAR, ROW, TOP = 210, 215, 125, 26, 64  # widths and heights, in pixels
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2430; }
  .quiet { fill: #667085; font-size: 12px; }
  .title { font-weight: 600; }
  .ours { fill: #2f6fde; } .theirs { fill: #9aa4b5; }
  .spread { stroke: #1f2430; stroke-width: 1.5; }
  .limit { stroke: #d1462f; stroke-width: 2; stroke-dasharray: 3 2; }
  .page { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ef; } .quiet { fill: #98a2b3; } .page { fill: #15181e; }
    .ours { fill: #6f9df0; } .theirs { fill: #667085; } .spread { stroke: #e6e9ef; }
    .limit { stroke: #ff7a63; }
  }
"""


@dataclass(frozen=True)
class Bar:
    """A value, where its rounds lie, and what the machine allows."""

    value: float
    text: str
    low: float | None = None
    high: float | None = None
    limit: float | None = None


def phase(name: str) -> Callable[[dict[str, Any]], Bar]:
    """Return what makes the bar of a phase's rate."""

    def bar(one: dict[str, Any]) -> Bar:
        rate, limits = one[f"{name}_tokens_per_second"], one["limits"] or {}
        text = f"{rate['median']:.{1 if rate['median'] < 100 else 0}f}"
        limit = limits.get(f"{name}_tokens_per_second")
        return Bar(rate["median"], text, rate["low"], rate["high"], limit)

    return bar


def first_token(one: dict[str, Any]) -> Bar:
    return Bar(one["first_token_s"], f"{1000 * one['first_token_s']:.0f} ms")


def memory(one: dict[str, Any]) -> Bar:
    return Bar(one["peak_bytes"], f"{one['peak_bytes'] / 1e9:.2f} GB")


PANELS: dict[str, Callable[[dict[str, Any]], Bar]] = {
    "prefill, tokens a second": phase("prefill"),
    "decode, tokens a second": phase("decode"),
    "first token": first_token,
    "peak memory": memory,
}


def drawn(found: dict[str, Any]) -> str:
    """Return the picture. It asks for nothing from outside, and is light or dark as the page is."""
    width = LABEL + PANEL * len(PANELS)
    group = TOP + ROW * len(found["engines"])
    height = group * len(found["runs"]) + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(heading(found))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    for number, run in enumerate(found["runs"]):
        lines += group_of(found, run, number * group)
    lines += legend(found, height - 40)
    return "\n".join([*lines, "</svg>", ""])


def heading(found: dict[str, Any]) -> str:
    return f"lockstep bench {Path(found['model']).name}"


def group_of(found: dict[str, Any], run: dict[str, Any], top: int) -> Iterator[str]:
    """Yield the bars of one prompt: a row for each engine, a column for each figure."""
    yield text(12, top + 28, f"{run['prompt_tokens']} tokens of prompt", "title")
    for row, (about, one) in enumerate(zip(found["engines"], run["engines"], strict=True)):
        base = top + TOP + ROW * row
        told = escape(f"{about['dtype']}, {about['weights']}")
        yield f"<g><title>{told}</title>{text(12, base, one['name'])}</g>"
    for column, (name, made) in enumerate(PANELS.items()):
        left, bars = LABEL + PANEL * column, [made(one) for one in run["engines"]]
        yield text(left, top + 28, name, "quiet")
        yield from panel(bars, [one["name"] for one in run["engines"]], left, top + TOP)


def panel(bars: list[Bar], names: list[str], left: int, top: int) -> Iterator[str]:
    """Yield bars on one scale, each with its spread and its limit."""
    most = max(max(bar.value, bar.high or 0, bar.limit or 0) for bar in bars)
    scale = BAR / most if most else 0.0
    for row, (bar, name) in enumerate(zip(bars, names, strict=True)):
        middle = top + ROW * row - 4
        kind = "theirs" if name.partition(":")[0] in THEIRS else "ours"
        yield (
            f'<rect class="{kind}" x="{left}" y="{middle - 8}" height="16" rx="2" '
            f'width="{max(1.0, scale * bar.value):.1f}"/>'
        )
        end = left + scale * max(bar.value, bar.high or 0, bar.limit or 0)
        if bar.low is not None and bar.high is not None:
            yield line("spread", left + scale * bar.low, left + scale * bar.high, middle, middle)
        if bar.limit is not None:
            at = left + scale * bar.limit
            yield line("limit", at, at, middle - 11, middle + 11)
        yield text(round(end + 8), middle + 4, bar.text)


def legend(found: dict[str, Any], top: int) -> Iterator[str]:
    yield line("limit", 18, 18, top - 12, top + 4)
    yield text(
        28,
        top,
        "the machine's limit: weights, keys and values read once a token, products in float32",
        "quiet",
    )
    yield line("spread", 520, 544, top - 4, top - 4)
    yield text(552, top, f"slowest to fastest of {found['rounds']} rounds, in turn", "quiet")
    yield text(12, top + 24, heading(found), "quiet")


def line(kind: str, left: float, right: float, top: float, bottom: float) -> str:
    ends = f'x1="{left:.1f}" x2="{right:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"'
    return f'<line class="{kind}" {ends}/>'


def text(left: int, base: int, said: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{left}" y="{base}"{of}>{escape(said)}</text>'
