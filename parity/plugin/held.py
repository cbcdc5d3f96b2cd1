"""Hold a run against a golden trace, a sketch or a whole one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.plain import judged_plainly
from lockstep.parity.dumps.dtype import computed_in
from lockstep.parity.dumps.dump import FORMAT as WHOLE
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.plugin.golden import Golden, compared, floating, read_golden
from lockstep.reference.checkpoint.errors import InputError, show_names
from lockstep.reference.checkpoint.safetensors import SafetensorsFile


def held(path: Path, dump: Dump, *, whole: bool, dtype: str | None) -> tuple[Result, str]:
    """Compare a run with a golden; `notes` says what is wrong beside tensors that differ.

    `dtype` is what the run is judged in, if not what the golden was computed in; that which was
    used comes with the result.
    Raises: InputError if there is no such golden, or it cannot be read.
    """
    kind = SafetensorsFile(path).metadata.get("format")
    result = Result(left=str(path), right=str(dump.path))
    if whole:
        if kind != WHOLE:
            raise InputError(path, "holds sketches, but the test asks for whole tensors")
        golden = open_dump(path)
        names, said = golden.shapes, golden.about.get("tokens")
        dtype = dtype or floating(computed_in(golden)[0])
        result.taps = list(in_full(golden, dump, dtype))
    else:
        if kind == WHOLE:
            raise InputError(path, "holds whole tensors, but the test asks for sketches")
        sketched: Golden = read_golden(path)
        names, said = sketched.entries, sketched.tokens
        dtype = dtype or sketched.dtype
        result.taps = compared(sketched, dump, dtype)
    result.notes = list(otherwise(list(names), dump, said))
    return result, dtype


def in_full(golden: Dump, dump: Dump, dtype: str) -> Iterator[Tap]:
    for name in golden.shapes:
        if name in dump.shapes:
            yield judged_plainly(name, dump.read(name), golden.read(name), dtype)


def otherwise(names: list[str], dump: Dump, tokens: str | None) -> Iterator[str]:
    """Yield what is otherwise with a run than its golden says: the prompt, and what was dumped."""
    told = dump.about.get("tokens")
    if told is not None and tokens is not None and told != tokens:
        yield "the prompt is another one: the token ids differ"
    gone = [name for name in names if name not in dump.shapes]
    if gone:
        yield f"{counted(gone, 'tensor')} of the golden not dumped: {show_names(gone)}"
    new = [name for name in dump.shapes if name not in set(names)]
    if new:
        yield f"{counted(new, 'tensor')} dumped that the golden has not: {show_names(new)}"
