"""Write what the torch modules of a model hand out to a trace, as they do."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lockstep.parity.progress import Progress
from lockstep.parity.torch_modules.casting import held_exactly
from lockstep.parity.torch_modules.loading import TorchModel, quiet
from lockstep.parity.torch_modules.rewriting import exact
from lockstep.parity.torch_modules.walk import Walk, names_of
from lockstep.parity.trace_file import TraceFile
from lockstep.reference.checkpoint.errors import InputError, escape, show

BACKEND = "transformers"


def trace_modules(
    model: TorchModel,
    tokens: Sequence[int],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    One module's output is in memory at a time. float64 is computed as such throughout, though the
    modules widen to float32 only.
    Raises: InputError if a glob names no module, or the file cannot be written.
    """
    names = names_of(model.module)
    for glob in globs or []:
        if not any(fnmatchcase(name, glob) for name in names):
            what = f"no module is named {show(glob)}; one is {names[len(names) // 2]}"
            raise InputError(model.path, what)
    about = {
        "model": escape(model.path.name),
        "backend": BACKEND,
        "dtype": model.dtype,
        "tokens": list(tokens),
    }
    with ExitStack() as stack:
        file = stack.enter_context(TraceFile(path, **about))
        progress = stack.enter_context(Progress(len(names) * (decode + 1)))
        stack.enter_context(quiet())
        if model.dtype == "float64":
            stack.enter_context(held_exactly(model.module))
            stack.enter_context(exact())
        decoded = walked(model, tokens, file, progress, globs, decode)
        if file.count == 0:
            raise InputError(
                "taps", f"{show(','.join(globs or []))} names nothing that is handed out"
            )
        file.writer.header["__metadata__"]["decoded"] = json.dumps(decoded)
    return {**about, "decoded": decoded, "taps": file.count, "file": str(path)}


def walked(
    model: TorchModel,
    tokens: Sequence[int],
    file: TraceFile,
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
