"""A result as workflow commands, which GitHub shows beside a run: `::error title=…::…`."""

from __future__ import annotations

from lockstep.parity.reports.document import Document
from lockstep.parity.reports.summary import fixes, headline, sentence

MOST = 9  # GitHub shows ten of a step; one is the verdict
DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = DATA | {":": "%3A", ",": "%2C"}


def github(document: Document) -> str:
    """Return a line for each thing to fix, the verdict first. A runner reads nothing else in it."""
    level = "notice" if document.good else "error"
    title = f"Lockstep {document.command}: {headline(document)}"
    about = f"{document.right} against {document.left}: {sentence(document)}"
    lines = [command(level, title, about)]
    found = fixes(document)
    for fix in found[:MOST]:
        where = f" ({fix.where})" if fix.where else ""
        lines.append(command("error", f"{fix.title}{where}", said(fix.text, fix.why)))
    if len(found) > MOST:
        lines.append(command("notice", title, f"{len(found) - MOST} more to fix"))
    return "\n".join(lines)


def said(text: str, why: tuple[tuple[str, str], ...]) -> str:
    return "\n".join([text, *(f"{label}: {line}" for label, line in why)])


def command(level: str, title: str, message: str) -> str:
    return f"::{level} title={escaped(title, PROPERTY)}::{escaped(message, DATA)}"


def escaped(text: str, table: dict[str, str]) -> str:
    """Escape as the runner unescapes; ##[ would be a command of its older grammar."""
    return text.replace("##[", "#\\x23[").translate(str.maketrans(table))
