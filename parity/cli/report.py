"""Make a report of what check, diff or explain wrote with --json: a page, or what CI reads.

Without any of the options the Markdown is printed. RESULT.json is not trusted, and neither are
the names in it: they can carry nothing into a report. The exit code does not tell the verdict.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.output import emit, put, write

HELP = "make a page, Markdown, JUnit or annotations of a result"
EXAMPLE = "  lockstep report result.json --html report.html --junit report.xml"
FILES = ("html", "markdown", "junit")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("result", metavar="RESULT.json", help="what --json FILE wrote")
    parser.add_argument("--html", metavar="FILE", help="one page that loads nothing")
    parser.add_argument("--markdown", metavar="FILE", help="for a pull request or a job's summary")
    parser.add_argument("--junit", metavar="FILE", help="JUnit XML: a test for each tap and bug")
    parser.add_argument("--github", action="store_true", help="print GitHub's annotations")


def run(options: Namespace) -> int:
    from lockstep.parity.reports.document import read

    document = read(options.result)
    check_targets(options)
    written = {kind: getattr(options, kind) for kind in FILES if getattr(options, kind) is not None}
    for kind, path in written.items():
        write_one(kind, path, document)
    if options.github and options.json != "-":
        from lockstep.parity.reports.github import github

        put(github(document))  # what printable() would do to a command is done in there
    made = {"command": document.command, "verdict": document.verdict, "written": written}
    emit(options, lambda: made, lambda: said(options, document, written), fold=False)
    return 0


def check_targets(options: Namespace) -> None:
    """Raise InputError if a report would be written over the result, or over another one."""
    from pathlib import Path

    from lockstep.reference.checkpoint.errors import InputError

    taken = {Path(options.result).resolve(): "is the result that is read"}
    for kind in (*FILES, "json"):
        path = getattr(options, kind)
        if path is None or (kind == "json" and path == "-"):
            continue
        if not path or "\0" in path or Path(path).is_dir():
            raise InputError(path, f"is no name of a file to write --{kind} to")
        whole = Path(path).resolve()
        if whole in taken and not str(whole).startswith("/dev/"):
            raise InputError(path, f"{taken[whole]}; write --{kind} elsewhere")
        taken[whole] = "is written already"


def write_one(kind: str, path: str, document: Any) -> None:
    from importlib import import_module
    from pathlib import Path

    write(Path(path), getattr(import_module(f"lockstep.parity.reports.{kind}"), kind)(document))


def said(options: Namespace, document: Any, written: dict[str, str]) -> str:
    """Say what was written; with nothing asked for, show the Markdown."""
    from lockstep.reference.checkpoint.errors import escape

    if options.github:
        return ""
    if written:
        return "\n".join(f"{kind} -> {escape(path)}" for kind, path in written.items())
    from lockstep.parity.reports.markdown import markdown

    return markdown(document).removesuffix("\n")
