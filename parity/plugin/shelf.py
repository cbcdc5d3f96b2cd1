"""Where the golden traces of a test lie, and how they are refreshed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.parity.cli.output import counted
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.judging.result import Result
from lockstep.parity.plugin.golden import golden_of, write_golden
from lockstep.parity.plugin.held import held
from lockstep.reference.checkpoint.errors import InputError, escape, show

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True)
class Shelf:
    """The goldens of one test file: in the folder `goldens` beside it, its own name in front."""

    test: Path
    refresh: bool
    say: Callable[[str], None]

    def place(self, name: str) -> Path:
        """Return the file of a golden. Raises: InputError if the name is no name of a file."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            what = "is no name of a golden: letters, digits, dots, dashes, at most 80"
            raise InputError(show(name), what)
        return self.test.parent / "goldens" / f"{self.test.stem}.{name}.safetensors"

    def renew(self, path: Path, dump: Dump, *, whole: bool, dtype: str | None) -> None:
        """Write a golden unless what is there agrees, and say what was done."""
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise InputError(path, "is no file of its own, so it is left as it is")
        change = changed(path, dump, whole=whole, dtype=dtype)
        if change is None:
            self.say(
                f"left as it was: {shown(path)}, no change in {counted(dump.shapes, 'tensor')}"
            )
            return
        path.parent.mkdir(exist_ok=True)
        if whole:
            write_whole(path, dump)
        else:
            write_golden(golden_of(dump, path))
        self.say(f"refreshed: {shown(path)}, {path.stat().st_size} bytes: {change}")


def shown(path: Path) -> str:
    """Return a path as it is typed where pytest runs."""
    here = Path.cwd()
    return escape(str(path.relative_to(here) if path.is_relative_to(here) else path))


def changed(path: Path, dump: Dump, *, whole: bool, dtype: str | None) -> str | None:
    """Say how a golden differs from what is to be one now, None if it does not."""
    if not path.exists():
        return f"new, {counted(dump.shapes, 'tensor')}"
    try:
        result, _ = held(path, dump, whole=whole, dtype=dtype)
    except InputError as error:
        return f"what was there could not be compared ({error.what})"
    return what_changed(result)


def what_changed(result: Result) -> str | None:
    wrong = [tap.name for tap in result.taps if tap.status != "ok"]
    said = [*result.notes]
    if wrong:
        said.append(f"{len(wrong)} of {len(result.taps)} tensors changed, {wrong[0]} first")
    return escape("; ".join(said)) or None


def write_whole(path: Path, dump: Dump) -> None:
    """Write all tensors as they are: a trace."""
    about = {name: text for name, text in dump.about.items() if name not in ("format", "version")}
    tokens = dump.tokens
    about.pop("tokens", None)
    with TraceFile(path, tokens=tokens or [], **about) as file:
        if tokens is None:
            del file.writer.header["__metadata__"]["tokens"]
        for name in dump.shapes:
            file(name, dump.read(name))
