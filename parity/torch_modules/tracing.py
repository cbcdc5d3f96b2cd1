"""Write what the torch modules of a model hand out to a trace, as they do."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.dumps.tracing import Trace, cut_to, prompts_of, said_of, with_decoded
from lockstep.parity.excerpts.excerpt import Excerpt, excerpt_of
from lockstep.parity.judging.padding import Padding
from lockstep.parity.progress import Progress
from lockstep.parity.torch_modules.batches import stacked
from lockstep.parity.torch_modules.casting import held_exactly
from lockstep.parity.torch_modules.loading import TorchModel, quiet
from lockstep.parity.torch_modules.rewriting import exact
from lockstep.parity.torch_modules.walk import Walk, names_of
from lockstep.reference.checkpoint.errors import InputError, escape, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

BACKEND = "transformers"


def trace_modules(
    model: TorchModel,
    tokens: Sequence[int] | Sequence[Sequence[int]],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
    at: str | None,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    `tokens` is a prompt, or the prompts of a batch: each is run alone, and they are then put side
    by side, filled up on the right with zeros. Of the prompts the tokens `at` are written, such as
    "last:8", None all. One module's output is in memory at a time. float64 is computed as such
    throughout, though the modules widen to float32 only.
    Raises: InputError if a glob names no module, a prompt has no such position, or the file cannot
    be written.
    """
    names = names_of(model.module)
    for glob in globs or []:
        if not any(fnmatchcase(name, glob) for name in names):
            what = f"no module is named {show(glob)}; one is {names[len(names) // 2]}"
            raise InputError(model.path, what)
    rows, batch = prompts_of(tokens)
    excerpt = excerpt_of(at, [len(row) for row in rows])
    about = {
        "model": escape(model.path.name),
        "backend": BACKEND,
        "dtype": model.dtype,
        **said_of(rows, batch),
        **(excerpt.said(batch=batch) if excerpt else {}),
    }
    with ExitStack() as stack:
        file = stack.enter_context(TraceFile(path, **about))
        progress = stack.enter_context(Progress(len(names) * (decode + 1) * len(rows)))
        stack.enter_context(quiet())
        if model.dtype == "float64":
            stack.enter_context(held_exactly(model.module))
            stack.enter_context(exact())
        if batch:
            decoded = walked_side_by_side(model, rows, file, progress, globs, decode, excerpt)
        else:
            write = file if excerpt is None else cut_to(excerpt, file)
            decoded = [walked(model, rows[0], write, progress, globs, decode)]
        if file.count == 0:
            raise InputError(
                "taps", f"{show(','.join(globs or []))} names nothing that is handed out"
            )
        about |= with_decoded(file, decoded, batch)
    return {**about, "taps": file.count, "file": str(path)}


def walked_side_by_side(
    model: TorchModel,
    rows: list[list[int]],
    file: TraceFile,
    progress: Progress,
    globs: Sequence[str] | None,
    decode: int,
    excerpt: Excerpt | None,
) -> list[list[int]]:
    """Run the prompts of a batch, one after another, and write each tap of all of them."""
    padding, decoded = Padding(tuple(map(len, rows))), []
    padding = padding if excerpt is None else excerpt.padding
    with TemporaryDirectory() as folder:
        homes = [Path(folder) / str(row) for row in range(len(rows))]
        for row, (tokens, home) in enumerate(zip(rows, homes, strict=True)):
            with TraceFile(home) as alone:
                write = alone if excerpt is None else cut_to(excerpt.row(row), alone)
                decoded.append(walked(model, tokens, write, progress, globs, decode))
        files = list(map(SafetensorsFile, homes))
        for name in files[0].entries:
            file(name, stacked([one.read(name) for one in files], padding))
    return decoded


def walked(
    model: TorchModel,
    tokens: Sequence[int],
    file: Trace,
    progress: Progress,
    globs: Sequence[str] | None,
    decode: int,
) -> list[int]:
    """Run the passes with every chosen tap going to the file; return what was fed after the first.

    A module that hands on another's value is written if that one was not chosen.
    """
    written: list[str] = []

    def visit(name: str, made: Any) -> None:
        path = name.rpartition("/")[2] if name.startswith("step.") else name
        if globs is None or any(fnmatchcase(path, glob) for glob in globs):
            file(name, made)
            written.append(name)
        progress(name)

    walk, fed, decoded = Walk(model.module, visit), list(tokens), []
    walk.is_tap = written.__contains__
    for number in range(decode + 1):
        chosen = walk.step(fed, number, more=number < decode)
        fed = [chosen]
        decoded += fed * (number < decode)
    return decoded
