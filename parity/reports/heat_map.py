"""The heat map: a row a layer, a column a tap, and in each cell a figure and a shade for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from lockstep.parity.cli.output import counted
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.grouping import LAYER
from lockstep.parity.naming.names import parted
from lockstep.parity.reports.markup import Markup, join, tag
from lockstep.parity.reports.summary import figure, plain

MOST_COLUMNS, MOST_ROWS = 60, 600
Shade = Callable[[Tap], tuple[str, str, str]]  # a tap's class, its short figure, the words for it
OUTPUT = "(output)"  # of a layer, whose own name is its row's


@dataclass(frozen=True)
class Grid:
    """Taps by row and column. `left_out` taps have no place, since there are too many of them."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    taps: Mapping[tuple[str, str], int]
    left_out: int


def grids(taps: Sequence[Tap]) -> tuple[Grid, Grid]:
    """Return the taps of the layers, and those outside of any."""
    inside: dict[tuple[str, str], int] = {}
    outside: dict[tuple[str, str], int] = {}
    for number, tap in enumerate(taps):
        found = LAYER.match(tap.name)
        if found:
            column = tap.name[found.end(1) :].lstrip(".") or OUTPUT
            inside.setdefault((row_of(found[1]), column), number)
        else:
            step, name = parted(tap.name)
            row = step.rstrip("/").replace(".", " ") or "prefill"
            outside.setdefault((row, name or tap.name), number)
    return grid(inside), grid(outside)


def row_of(layer: str) -> str:
    """Return a layer's label: its number, after its step if that is not the first."""
    step, _, module = layer.rpartition("/")
    number = module.rpartition(".")[2]
    return f"{step.replace('.', ' ')}, {number}" if step else number


def grid(cells: Mapping[tuple[str, str], int]) -> Grid:
    rows = tuple(dict.fromkeys(row for row, _ in cells))[:MOST_ROWS]
    columns = in_order([column for _, column in cells])[:MOST_COLUMNS]
    known = {*rows}, {*columns}
    shown = {place: number for place, number in cells.items()
             if place[0] in known[0] and place[1] in known[1]}  # fmt: skip
    return Grid(rows, columns, shown, len(cells) - len(shown))


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return names once, but not many more than fit; those of a few rows stand at their place."""
    found: list[str] = []
    place = 0
    for name in names:
        if name in found:
            place = found.index(name) + 1
        elif len(found) < 4 * MOST_COLUMNS:
            found.insert(place, name)
            place += 1
    return tuple(found)


def heat_map(
    cells: Grid, taps: Sequence[Tap], shade: Shade, title: str, linked: Callable[[int], bool]
) -> Markup:
    """Return a table; `linked` says which taps have an entry that their cell can lead to."""
    body = [
        tag("tr", tag("th", row, scope="row"),
            *(cell(cells.taps.get((row, column)), taps, shade, linked) for column in cells.columns))
        for row in cells.rows
    ]  # fmt: skip
    table = tag("table", tag("caption", title, class_="hidden"), tag("thead", *heads(cells)),
                tag("tbody", *body), class_="map")  # fmt: skip
    said = f"In the list below alone: {counted(cells.left_out, 'tap')} more."
    more = tag("p", said, class_="note")
    frame = tag("div", table, class_="frame", role="region", aria_label=title, tabindex="0")
    return join(frame, more if cells.left_out else "")


def heads(cells: Grid) -> list[Markup]:
    """Return the columns' names: modules above, their parts, standing, below."""
    pairs = [split(column) for column in cells.columns]
    above = [tag("th", module, colspan=len(list(group)), scope="colgroup") if module
             else tag("td", colspan=len(list(group)))
             for module, group in groupby(module for module, _ in pairs)]  # fmt: skip
    below = [tag("th", tag("span", part), scope="col", class_="part") for _, part in pairs]
    corner = tag("td", class_="corner")
    named = any(module for module, _ in pairs)
    rows = [tag("tr", corner, *above, class_="modules")] if named else []
    return [*rows, tag("tr", corner, *below)]


def split(column: str) -> tuple[str, str]:
    """Return the module and the part, (`self_attn`, `q_proj`), as long as a head can be."""
    module, _, part = column.rpartition(".")
    if module in ("model", "transformer"):  # outside the layers the rest says it
        module = ""
    return clipped(module, 24), clipped(part, 32)


def clipped(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def cell(
    number: int | None, taps: Sequence[Tap], shade: Shade, linked: Callable[[int], bool]
) -> Markup:
    if number is None:
        return tag("td", class_="none")
    tap = taps[number]
    level, short, words = shade(tap)
    wrong = " wrong" if tap.is_wrong else ""
    label = f"{tap.name}: {words}; {tap.status}"
    inside = (tag("a", short, href=f"#tap-{number}", aria_label=label) if linked(number)
              else tag("span", short, aria_label=label, role="img"))  # fmt: skip
    return tag("td", inside, class_=level + wrong)


def accumulated(tap: Tap) -> tuple[str, str, str]:
    """Shade by the order of magnitude of the difference from the right run."""
    if tap.status == "not judged":
        return "u", "·", "not judged"
    value = tap.rms_rel
    if value is None:
        if tap.is_wrong:
            return "a9", "✕", "no figure"
        return "a0", "=", "zero on both sides"
    if value == 0:
        return "a0", "=", "no difference"
    words = f"accumulated error {figure(value)}"
    if not math.isfinite(value):
        return "a9", "nan" if value != value else "inf", words
    power = math.floor(math.log10(abs(value)))
    return f"a{min(max(power + 9, 1), 9)}", str(power).replace("-", "−"), words


def own(tap: Tap) -> tuple[str, str, str]:
    """Shade by the verdict, and by how many times its noise an own error is."""
    if tap.status == "not judged":
        return "u", "·", "not judged"
    if tap.ratio is None:
        return "d4", "✕", tap.place or "no figure"
    words = f"own error {figure(tap.own_error)}, {plain(tap.ratio)} times its noise"
    return own_level(tap), compact(tap.ratio), words


def own_level(tap: Tap) -> str:
    ratio = tap.ratio or 0.0
    if not tap.is_wrong:
        return "o0" if ratio <= 1 else "o1"
    steps = (10, 1e3, 1e5)
    return f"d{1 + sum(not ratio < step for step in steps)}"


def compact(ratio: float) -> str:
    """Return a ratio in four characters."""
    if not math.isfinite(ratio):
        return "nan" if ratio != ratio else "inf"
    if ratio < 9.95:
        return f"{ratio:.1f}" if ratio else "0"
    return f"{ratio:.0f}" if ratio < 999.5 else f"{ratio:.0e}".replace("e+0", "e").replace("+", "")
