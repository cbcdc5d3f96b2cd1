"""Run a model with its taps going to a file."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.progress import Progress
from lockstep.parity.trace_file import TraceFile
from lockstep.reference.checkpoint.errors import InputError


def trace_run(
    model: Any,
    tokens: Sequence[int],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    `globs` choose taps by name, None all. The run is the one that `generate` makes.
    Raises: InputError if no tap has such a name, or the file cannot be written.
    """
    cache, fed, decoded = model.make_cache(), list(tokens), []
    backend = getattr(model, "backend", None)
    about = {
        "model": str(model.checkpoint.path.name),
        "backend": backend.name if backend else "reference",
        "dtype": model.dtype,
        "tokens": tokens,
    }
    stages = (decode + 1) * (model.config.num_hidden_layers + 2)
    with TraceFile(path, **about) as file, Progress(stages) as progress:
        for step in range(decode + 1):
            file.prefix = f"step.{step}/" if step else ""
            logits = run_stages(model, fed, cache, file, globs, progress)
            if step < decode:
                fed = [int(np.argmax(to_numpy(logits)[0, -1]))]
                decoded += fed
        if file.count == 0:
            raise InputError(path, f"no tap is named {','.join(globs or [])}; see lockstep taps")
        file.writer.header["__metadata__"]["decoded"] = json.dumps(decoded)
    return {**about, "tokens": list(tokens), "decoded": decoded, "taps": file.count, "file": str(path)}


def run_stages(
    model: Any,
    tokens: Sequence[int],
    cache: Any,
    file: TraceFile,
    globs: Sequence[str] | None,
    progress: Progress,
) -> Any:
    """Run one step a stage at a time, so that a stage's taps are written before the next begins."""

    def chosen(name: str, value: Any) -> None:
        if globs is None or any(fnmatchcase(name, glob) for glob in globs):
            file(name, value)

    logits = None
    for name, value in model.stages([tokens], cache=cache, trace=chosen):
        progress(name)
        logits = value
    return logits
