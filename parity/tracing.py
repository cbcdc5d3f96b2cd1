"""Run a model with its taps going to a file."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.cached import attentions, caches_behind
from lockstep.parity.names import CACHED
from lockstep.parity.progress import Progress
from lockstep.parity.taps import taps_of
from lockstep.parity.trace_file import TraceFile
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, escape, show

NAMED = "cached_"  # taps of caches grow with every step: they are written where a glob says so


def trace_run(
    model: Any,
    tokens: Sequence[int],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    `globs` choose taps by name, None all. The run is the one that `generate` makes, and the file
    appears when it is complete.
    Raises: InputError if no tap that this backend computes has such a name, or the file cannot be
    written.
    """
    cache, fed, decoded = model.make_cache(), list(tokens), []
    about = {
        "model": escape(model.checkpoint.path.name),
        "backend": backend_of(model),
        "dtype": model.dtype,
        "tokens": list(tokens),
    }
    if (adapter := adapter_of(model)) is not None:
        about["adapter"] = escape(adapter.name)
    stages = (decode + 1) * (model.config.num_hidden_layers + 2)
    with TraceFile(path, **about) as file, Progress(stages) as progress:
        for step in range(decode + 1):
            file.prefix = f"step.{step}/" if step else ""
            logits = run_stages(model, fed, cache, file, globs, progress)
            if step < decode:
                fed = [int(np.argmax(to_numpy(logits)[0, -1]))]
                decoded += fed
        if file.count == 0:
            what = f"{show(','.join(globs or []))} names nothing that {about['backend']} computes"
            raise InputError("taps", f"{what}: its operations are fused")
        file.writer.header["__metadata__"]["decoded"] = json.dumps(decoded)
    return {**about, "decoded": decoded, "taps": file.count, "file": str(path)}


def backend_of(model: Any) -> str:
    return model.runs_on


def adapter_of(model: Any) -> Path | None:
    return model.adapters.path if hasattr(model, "adapters") else None


def check_globs(checkpoint: Checkpoint, globs: Sequence[str] | None) -> None:
    """Raise InputError if one of the globs is the name of no tap, before anything runs."""
    names = [tap["name"] for tap in taps_of(checkpoint)] if globs is not None else []
    names += [name + suffix for name in attentions(names) for suffix in CACHED]
    for glob in globs or []:
        if not any(fnmatchcase(name, glob) for name in names):
            what = f"no tap is named {show(glob)}; `lockstep taps` lists them"
            raise InputError(checkpoint.path, what)


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
        if globs is not None and any(NAMED in glob for glob in globs):
            for tap, held in caches_behind(name, cache):
                chosen(tap, held)
        progress(name)
        logits = value
    return logits
