"""A result as one page: it loads nothing, and its own style and script are all that may act in it.

What a browser may do is fixed by the page's policy, which names the two by their hashes. Without
the script everything is there: cells are links, and taps unfold by themselves.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from lockstep.parity.cli.output import counted
from lockstep.parity.naming.grouping import groups
from lockstep.parity.reports.document import Document
from lockstep.parity.reports.heat_map import Grid, Shade, accumulated, grids, heat_map, own
from lockstep.parity.reports.markup import Markup, mono, prose, tag
from lockstep.parity.reports.summary import Fix, figure, fixes, headline, sentence
from lockstep.parity.reports.tap_cards import card

MOST_CARDS, MOST_FIXES, MOST_LINES = 4000, 200, 400
ACCUMULATED = "Accumulated error"
OWN = "Own error over noise"
READ_ACCUMULATED = (
    "How far each tap is from the right run, in powers of ten of its size: −7 is 1e-7. "
    "It grows from a wrong tap on through all that follows."
)
READ_OWN = (
    "What each tap adds, given what it was fed, over what rounding may do there. Around 1 is "
    "right; a framed cell is wrong in itself, and where to look."
)


def html(document: Document) -> str:
    """Return the whole page."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = f"{headline(document)}: {document.right}"
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title, " · Lockstep"),
        tag("style", Markup(style)),
    )
    body = tag("body", *page(document), tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def page(document: Document) -> list[Markup]:
    skip = tag("a", "Skip to what to fix", href="#fix", class_="skip")
    parts = [fix_list(document), maps(document), what_if(document), coverage(document),
             plan(document), cards(document)]  # fmt: skip
    return [skip, banner(document), tag("main", *parts), footer()]


def banner(document: Document) -> Markup:
    """Return the verdict, and what was held against what."""
    kind = "good" if document.good else "bad"
    mark = "✓" if document.good else "✕"
    return tag(
        "header",
        tag("p", "Lockstep ", document.command, class_="label"),
        tag("h1", tag("span", mark, class_="mark", aria_hidden="true"), headline(document)),
        tag("p", mono(document.right), tag("span", "against", class_="against"),
            mono(document.left), class_="sides"),
        tag("p", sentence(document), class_="lead"),
        class_=kind,
    )  # fmt: skip


def section(name: str, title: str, *parts: object) -> Markup:
    return tag("section", tag("h2", title, id=f"{name}-title"), *parts, id=name, tabindex="-1",
               aria_labelledby=f"{name}-title")  # fmt: skip


def fix_list(document: Document) -> Markup:
    found = fixes(document)
    if not found:
        words = "Nothing. Every tap that was judged is right, given what it was fed."
        if document.command != "explain":
            words = "Nothing. No tap differs by more than rounding may do."
        return section("fix", "What to fix", tag("p", words))
    more = f"{len(found) - MOST_FIXES} more, not shown." if len(found) > MOST_FIXES else ""
    listed = tag("ol", *map(fix_item, found[:MOST_FIXES]), class_="fixes")
    return section("fix", "What to fix", listed, tag("p", more, class_="note") if more else "")


def fix_item(fix: Fix) -> Markup:
    where = [tag("span", fix.where, class_="where")] if fix.where else []
    if fix.sure is not None:
        where.append(tag("span", f"confidence {fix.sure:.2f}", class_="where"))
    why = [tag("div", tag("dt", term), tag("dd", prose(said))) for term, said in fix.why]
    if len(fix.taps) > 1 or (fix.taps and fix.taps[0] != fix.title):
        seen = ", ".join(f"{name} ×{count}" if count > 1 else name
                         for name, count in groups(fix.taps)[:12])  # fmt: skip
        why.append(tag("div", tag("dt", "seen at"), tag("dd", seen)))
    what = tag("div", tag("h3", mono(fix.title), *where), tag("p", prose(fix.text)))
    return tag("li", what, tag("dl", *why))


def maps(document: Document) -> Markup:
    """Return both heat maps; the second needs an oracle."""
    if not document.taps:
        return tag("div")
    shown = grids(document.taps)
    parts: list[Markup] = []
    if any(tap.ratio is not None for tap in document.taps):
        parts.append(one_map(document, shown, OWN, READ_OWN, own, "own"))
    parts.append(one_map(document, shown, ACCUMULATED, READ_ACCUMULATED, accumulated, "all"))
    return section("maps", "Layer by layer", *parts)


def one_map(
    document: Document, shown: tuple[Grid, Grid], title: str, read: str, shade: Shade, kind: str
) -> Markup:
    cards = carded(document)
    inside, outside = shown
    parts = [heat_map(cells, document.taps, shade, f"{title}, {where}", cards.__contains__)
             for cells, where in ((inside, "by layer"), (outside, "outside the layers"))
             if cells.taps]  # fmt: skip
    return tag("div", tag("h3", title), tag("p", read, class_="read"), *parts, legend(kind),
               class_="heat")  # fmt: skip


def legend(kind: str) -> Markup:
    """Say what the shades mean; the figures in the cells say it too."""
    levels = (
        [("o0", "≤ 1"), ("o1", "within limits"), ("d1", "< 10"), ("d2", "< 1e3"), ("d3", "< 1e5"),
         ("d4", "more")]
        if kind == "own"
        else [("a0", "= the same"), ("a1", "1e-8"), ("a3", "1e-6"), ("a5", "1e-4"), ("a7", "1e-2"),
              ("a9", "≥ 1")]
    )  # fmt: skip
    keys = [tag("li", tag("span", class_=f"swatch {level}"), said) for level, said in levels]
    return tag("ul", *keys, class_="legend", aria_label="Shades")


def what_if(document: Document) -> Markup:
    """Return the error of the logits with each bug fixed."""
    rows = [
        tag("tr", tag("td", mono(named(fixed))), tag("td", figure(error), class_="num"))
        for fixed, error in document.counterfactual[:MOST_LINES]
    ]
    if not rows:
        return tag("div")
    head = tag("tr", tag("th", "With this fixed", scope="col"),
               tag("th", "error of the logits", scope="col", class_="num"))  # fmt: skip
    caption = tag("caption", "Error of the logits with each bug fixed", class_="hidden")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="plain")
    return section("what-if", "If it were fixed", table)


def named(fixed: tuple[str, ...]) -> str:
    return f"all {len(fixed)}" if len(fixed) > 1 else "".join(fixed) or "nothing"


def coverage(document: Document) -> Markup:
    """Say what was compared, and above all what was not."""
    wrong = sum(tap.is_wrong for tap in document.taps)
    differ = any(tap.status == "differs" for tap in document.taps)  # nobody knows whence
    figures = [("compared", document.compared),
               ("beyond rounding" if differ else "wrong in themselves", wrong),
               ("on one side only", len(document.unmatched)),
               ("not judged", len(document.not_judged))]  # fmt: skip
    counts = tag("dl", *(tag("div", tag("dt", term), tag("dd", f"{count:,}"))
                         for term, count in figures), class_="counts")  # fmt: skip
    return section("coverage", "Coverage", counts,
                   names("On one side only, and not compared", document.unmatched),
                   names("Not judged", document.not_judged))  # fmt: skip


def names(title: str, listed: tuple[str, ...]) -> Markup:
    found = groups(listed)
    if not found:
        return Markup("")
    items = [tag("li", mono(name), f" ×{count}" if count > 1 else "")
             for name, count in found[:MOST_LINES]]  # fmt: skip
    more = tag("p", f"{len(found) - MOST_LINES} more, not shown.", class_="note")
    summary = tag("summary", f"{title}: {len(listed)}")
    rest = more if len(found) > MOST_LINES else ""
    return tag("details", summary, tag("ul", *items, class_="names"), rest, class_="fold")


def plan(document: Document) -> Markup:
    lines = document.conventions
    if not lines:
        return section("plan", "Alignment and conventions", tag("p", "Nothing had to be moved."))
    more = tag("p", f"{len(lines) - MOST_LINES} more, not shown.", class_="note")
    items = [tag("li", prose(line)) for line in lines[:MOST_LINES]]
    return section("plan", "Alignment and conventions", tag("ul", *items, class_="notes"),
                   more if len(lines) > MOST_LINES else "")  # fmt: skip


def carded(document: Document) -> set[int]:
    """Return the taps that have a card: as many as a page can bear, the wrong ones first."""
    taps = document.taps
    first = sorted(range(len(taps)), key=lambda number: not taps[number].is_wrong)
    return set(first[:MOST_CARDS])


def cards(document: Document) -> Markup:
    if not document.taps:
        return tag("div")
    shown = sorted(carded(document))
    more = len(document.taps) - len(shown)
    head = tag("p", tag("span", "tap"), tag("span", "accumulated", class_="num"),
               tag("span", "own ÷ noise", class_="num"), tag("span", "status"),
               class_="columns", aria_hidden="true")  # fmt: skip
    said = f"Without an entry: {counted(more, 'tap')} more, none worse than these."
    note = tag("p", said, class_="note")
    return section("taps", "Every tap", head,
                   *(card(number, document.taps[number]) for number in shown),
                   note if more else "")  # fmt: skip


def footer() -> Markup:
    from lockstep import __version__

    return tag("footer", f"Made by Lockstep {__version__}. One file, which loads nothing.")
