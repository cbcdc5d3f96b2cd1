"""Run a model with its taps going to a file."""

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.judging.padding import Padding
from lockstep.parity.naming.names import CACHED
from lockstep.parity.progress import Progress
from lockstep.parity.replaying.cached import attentions, caches_behind
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, escape, show

HEADER, ENTRY = 4096, 104  # bytes of what is said of the whole, and of a tap beside its name
NAMED = "cached_"  # taps of caches grow with every step: they are written where a glob says so


def trace_run(
    model: Any,
    tokens: Sequence[int] | Sequence[Sequence[int]],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
    files: Callable[..., Any] = TraceFile,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    `tokens` is a prompt, or the prompts of a batch, which is filled up on the right. `globs` choose
    taps by name, None all. The run is the one that `generate` makes, and the file appears when it
    is complete. `files` opens what is written to, a file for each of several ranks where it is one.
    Raises: InputError if no tap that this backend computes has such a name, or the file cannot be
    written, or would have a header that is too long to be read.
    """
    rows, batch = prompts_of(tokens)
    padding = Padding(tuple(map(len, rows)))
    cache, fed, decoded = model.make_cache(), padding.filled(rows), [[] for _ in rows]
    about = {
        "model": escape(model.checkpoint.path.name),
        "backend": backend_of(model),
        "dtype": model.dtype,
        **said_of(rows, batch),
    }
    if (adapter := adapter_of(model)) is not None:
        about["adapter"] = escape(adapter.name)
    stages = (decode + 1) * (model.config.num_hidden_layers + 2)
    room = header_room(model.checkpoint, globs, decode + 1)
    with files(path, room, **about) as file, Progress(stages) as progress:
        for step in range(decode + 1):
            file.prefix = f"step.{step}/" if step else ""
            lengths = None if step or not batch else padding.lengths
            logits = to_numpy(run_stages(model, fed, cache, file, globs, progress, lengths))
            file.check_header(1 if step else decode + 1)  # before the steps, not behind them
            if step < decode:
                last = [-1] * len(rows) if step else padding.last
                fed = np.argmax(logits[np.arange(len(rows)), last], axis=-1)[:, None]
                for row, chosen in zip(decoded, fed[:, 0].tolist(), strict=True):
                    row.append(chosen)
        if file.count == 0:
            what = f"{show(','.join(globs or []))} names nothing that {about['backend']} computes"
            raise InputError("taps", f"{what}: its operations are fused")
        about |= with_decoded(file, decoded, batch)
    return {**about, "taps": file.count, "file": str(path)}


def prompts_of(
    tokens: Sequence[int] | Sequence[Sequence[int]],
) -> tuple[list[list[int]], bool]:
    """Return prompts as rows, and whether they are a batch."""
    batch = not all(isinstance(one, int | np.integer) for one in tokens)
    rows: Any = tokens if batch else [tokens]
    return [list(row) for row in rows], batch


def said_of(rows: list[list[int]], batch: bool) -> dict[str, Any]:
    """Return what a trace says of its prompts."""
    return {"batch": rows, "padding": "right"} if batch else {"tokens": rows[0]}


def with_decoded(file: Any, decoded: list[list[int]], batch: bool) -> dict[str, Any]:
    """Say in a trace what its rows were fed after their prompts; return that."""
    said = {"batch_decoded": decoded} if batch else {"decoded": decoded[0]}
    for one in getattr(file, "each", [file]):  # a file for each of several ranks
        metadata = one.writer.header["__metadata__"]
        metadata |= {key: json.dumps(value) for key, value in said.items()}
        if batch:
            del metadata["tokens"]  # which the writer always begins with
    return said


def header_room(checkpoint: Checkpoint, globs: Sequence[str] | None, steps: int) -> int:
    """Return bytes in which a trace's header finds room: an entry for each tap that is meant."""
    names = names_of(checkpoint, cached=names_caches(globs))
    chosen = [name for name in names if globs is None or matched(name, globs)]
    return HEADER + steps * sum(ENTRY + len(name) for name in chosen)


def names_of(checkpoint: Checkpoint, *, cached: bool) -> list[str]:
    """Return the names of a model's taps, those of its caches among them if they are wanted."""
    names = [tap["name"] for tap in taps_of(checkpoint)]
    return names + [name + suffix for name in attentions(names) for suffix in CACHED if cached]


def names_caches(globs: Sequence[str] | None) -> bool:
    return any(NAMED in glob for glob in globs or [])


def matched(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def backend_of(model: Any) -> str:
    return model.runs_on


def adapter_of(model: Any) -> Path | None:
    return model.adapters.path if hasattr(model, "adapters") else None


def check_globs(checkpoint: Checkpoint, globs: Sequence[str] | None) -> None:
    """Raise InputError if one of the globs is the name of no tap, before anything runs."""
    names = names_of(checkpoint, cached=True) if globs is not None else []
    for glob in globs or []:
        if not any(fnmatchcase(name, glob) for name in names):
            what = f"no tap is named {show(glob)}; `lockstep taps` lists them"
            raise InputError(checkpoint.path, what)


def run_stages(
    model: Any,
    tokens: np.ndarray,
    cache: Any,
    file: Any,
    globs: Sequence[str] | None,
    progress: Progress,
    lengths: Sequence[int] | None,
) -> Any:
    """Run one step a stage at a time, so that a stage's taps are written before the next begins."""

    def chosen(name: str, value: Any) -> None:
        if globs is None or matched(name, globs):
            file(name, value)

    logits, placed = None, {} if lengths is None else {"lengths": lengths}
    for name, value in model.stages(tokens, cache=cache, trace=chosen, **placed):
        if names_caches(globs):
            for tap, held in caches_behind(name, cache):
                chosen(tap, held)
        progress(name)
        logits = value
    return logits
