"""A result for a pull request, in GitHub's Markdown.

What came from a file is put into code spans, or escaped: it can make no link, table, mention,
reference to an issue, nor a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lockstep.parity.cli.output import printable
from lockstep.parity.naming.grouping import groups
from lockstep.parity.reports.document import Document
from lockstep.parity.reports.summary import Fix, figure, fixes, headline, plain, sentence

MOST_FIXES, MOST_ROWS, MOST_NAMES = 30, 40, 30
MARKS = re.compile(r"([\`*{}\[\]<>!|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# What GitHub makes links of in plain text, whatever is escaped around it.
LINKED = re.compile(r"[@#$]|://|www\.|\bGH-|\b[0-9a-f]{7,40}\b|:[a-z0-9_+-]+:", re.IGNORECASE)


def markdown(document: Document) -> str:
    """Return the report; no line of it is a command to a runner that prints it."""
    mark = "✅" if document.good else "❌"
    head = f"### {mark} Lockstep {document.command}: {headline(document)}"
    sides = f"{code(document.right)} against {code(document.left)}"
    parts = [head, f"{sides}: {said(sentence(document))}", fix_list(document), wrong_taps(document)]
    parts += [what_if(document), *folded(document)]
    return printable("\n\n".join(part for part in parts if part) + "\n")


def fix_list(document: Document) -> str:
    found = fixes(document)
    if not found:
        return ""
    lines = [line for number, one in enumerate(found[:MOST_FIXES], 1) for line in item(number, one)]
    more = len(found) - MOST_FIXES
    return "\n".join(["**Fix**", "", *lines, *([f"\n{more} more"] if more > 0 else [])])


def item(number: int, fix: Fix) -> list[str]:
    sure = "" if fix.sure is None else f", confidence {fix.sure:.2f}"
    where = f" ({fix.where}{sure})" if fix.where or sure else ""
    head = f"{number}. {code(fix.title)}{where.replace('(, ', '(')}: {said(fix.text)}"
    return [head, *(f"   - {label}: {said(text)}" for label, text in fix.why)]


def wrong_taps(document: Document) -> str:
    """Return a table of the taps that are wrong."""
    wrong = [tap for tap in document.taps if tap.is_wrong]
    rows = [(code(tap.name), figure(tap.rms_rel), figure(tap.own_error), figure(tap.noise),
             plain(tap.ratio), code(tap.op) if tap.op else "-")
            for tap in wrong[:MOST_ROWS]]  # fmt: skip
    if not rows:
        return ""
    more = f"\n\n{len(wrong) - MOST_ROWS} more" if len(wrong) > MOST_ROWS else ""
    head = ("wrong tap", "accumulated error", "own error", "noise", "ratio", "made by")
    return table(head, rows) + more


def what_if(document: Document) -> str:
    rows = [(names(fixed) or "nothing", figure(error))
            for fixed, error in document.counterfactual[:MOST_ROWS]]  # fmt: skip
    return table(("with this fixed", "error of the logits"), rows) if rows else ""


def folded(document: Document) -> list[str]:
    """Return what is unfolded on demand: coverage, and what was done to compare."""
    alone = [f"- {code(name)}{times(count)}" for name, count in groups(document.unmatched)]
    unjudged = [f"- {code(name)}{times(count)}" for name, count in groups(document.not_judged)]
    notes = [f"- {said(line)}" for line in document.conventions]
    return [
        unfold(f"On one side only, and not compared: {len(document.unmatched)}", alone),
        unfold(f"Not judged: {len(document.not_judged)}", unjudged),
        unfold(f"Alignment and conventions: {len(document.conventions)}", notes),
    ]


def unfold(summary: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    more = [f"- {len(lines) - MOST_NAMES} more"] if len(lines) > MOST_NAMES else []
    body = "\n".join([*lines[:MOST_NAMES], *more])
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of names with figures behind them, and the operation, a name too, last."""
    sides = ["---", *["---:"] * (len(head) - 1)]
    lines = [head, [*sides[:-1], "---" if head[-1] == "made by" else sides[-1]], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def names(fixed: Sequence[str]) -> str:
    return f"all {len(fixed)}" if len(fixed) > 1 else "".join(map(code, fixed))


def times(count: int) -> str:
    return f" ({count})" if count > 1 else ""


def code(text: str) -> str:
    """Return text as a code span, in which nothing is read but what ends it, or a cell."""
    inside = text.replace("`", "\\x60").replace("|", "\\x7c")
    return f"`{inside}`" if inside.strip() == inside and inside else f"`·{inside}·`"


def said(text: str) -> str:
    """Return a sentence as it is, or as code if GitHub would link something in it."""
    return code(text) if LINKED.search(text) else MARKS.sub(r"\\\1", text)
