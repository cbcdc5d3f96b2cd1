"""Run a model with its taps going to a file."""

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.run import Run, Trace
from lockstep.parity.dumps.steps import Steps, names_caches
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.excerpts.blocks import asks_for_scores, block_of, by_blocks, said_of_blocks
from lockstep.parity.excerpts.excerpt import Excerpt, excerpt_of
from lockstep.parity.excerpts.whole_run import WholeRun
from lockstep.parity.judging.padding import Padding
from lockstep.parity.naming.names import CACHED, matched
from lockstep.parity.progress import Progress
from lockstep.parity.replaying.cached import attentions
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, escape, show

PARTS = ("this prompt goes through the reference in parts, and nothing is kept before its end; "
         "--backend cpu and mlx take it as a whole")  # fmt: skip
HEADER, ENTRY = 4096, 104  # bytes of what is said of the whole, and of a tap beside its name


def trace_run(
    model: Any,
    tokens: Sequence[int] | Sequence[Sequence[int]],
    path: str | Path,
    *,
    globs: Sequence[str] | None,
    decode: int,
    at: str | None = None,
    sketched: bool = False,
    resume: bool = False,
    files: Callable[..., Any] = TraceFile,
) -> dict[str, Any]:
    """Write the taps of a prefill and of `decode` greedy steps; return what was written.

    `tokens` is a prompt, or the prompts of a batch, which is filled up on the right. `globs` choose
    taps by name, None all. Of the prompt the tokens `at`, such as "last:8", are written,
    None all. The run is the one that `generate` makes, and the file appears when it is complete.
    `sketched`: of each tap its sketch is written, some hundred bytes. With `resume` a run that is
    interrupted leaves what it has beside `path`, and the same one, begun again, goes on from
    there: to the same bits. Where `globs` leave scores out that would be large, the reference makes
    them a block of queries at a time, and the last bits may be others. `files` opens what is
    written to, a file for each of several ranks where it is one.
    Raises: InputError if no tap that this backend computes has such a name, or no prompt such a
    position, or a batch of unequal prompts is to be sketched, or `resume` is asked where a prompt
    of which some tokens are written is fed in parts, or the file cannot be written, or would have a
    header that is too long to be read.
    """
    rows, batch = prompts_of(tokens)
    padding = Padding(tuple(map(len, rows)))
    excerpt = excerpt_of(at, padding.lengths)
    told: dict[str, Any] = {}
    if not resume and excerpt is None:
        model, told = without_scores(model, padding, globs)
    run = Run(model, model.make_cache(), padding, excerpt, decode, batch=batch)
    if resume and excerpt is not None:
        check_whole(WholeRun(model, run.cache, excerpt), padding.filled(rows))
    if sketched:
        check_equal(padding)
    about = about_of(model, rows, batch, excerpt)
    room = header_room(model.checkpoint, globs, decode + 1)
    if resume:
        given = model, path, room, about, globs, decode, sketched
        file, steps = opened_again(*given, some=excerpt is not None)
    else:
        file, steps = opened(path, room, about, sketched, files), Steps(model)
    with file, Progress(run.stages) as progress:
        decoded = run.write(steps, file, globs, padding.filled(rows), progress)
        if file.count == 0:
            what = f"{show(','.join(globs or []))} names nothing that {about['backend']} computes"
            raise InputError("taps", f"{what}: its operations are fused")
        about |= with_decoded(file, decoded, batch)
    kind = {"sketched": True} if sketched else {}
    return {**about, "taps": file.count, "file": str(path), **kind, **told, **steps.said()}


def about_of(
    model: Any, rows: list[list[int]], batch: bool, excerpt: Excerpt | None
) -> dict[str, Any]:
    """Return what a trace says of the run that it is of."""
    about = {
        "model": escape(model.checkpoint.path.name),
        "backend": backend_of(model),
        "dtype": model.dtype,
        **said_of(rows, batch),
        **(excerpt.said(batch=batch) if excerpt else {}),
    }
    if (adapter := adapter_of(model)) is not None:
        about["adapter"] = escape(adapter.name)
    return about


def without_scores(
    model: Any, padding: Padding, globs: Sequence[str] | None
) -> tuple[Any, dict[str, Any]]:
    """Return a model that makes no whole matrix of scores, if that is large and not asked for."""
    shape = len(padding.lengths), padding.longest
    count = block_of(model, *shape)
    if count is None or asks_for_scores(names_of(model.checkpoint, cached=False), globs):
        return model, {}
    return by_blocks(model, count), {"blocks": said_of_blocks(model, count, *shape)}


def opened(
    path: str | Path, room: int, about: dict[str, Any], sketched: bool, files: Callable[..., Any]
) -> Any:
    """Return the file that taps go to, whole or sketched."""
    if not sketched:
        return files(path, room, **about)
    from lockstep.parity.sketches.writing import SketchFile

    return SketchFile(path, **about)


def check_equal(padding: Padding) -> None:
    """Raise InputError if prompts that are to be sketched are not of one length."""
    from lockstep.parity.sketches.writing import UNEQUAL

    if len({*padding.lengths}) > 1:
        raise InputError("--sketch", UNEQUAL)


def check_whole(run: WholeRun, fed: np.ndarray) -> None:
    """Raise InputError if a prompt is fed in parts, so that layers come to no end before it."""
    if run.part_of(fed) < fed.shape[1]:
        raise InputError("--resume", PARTS)


def opened_again(
    model: Any, path: str | Path, room: int, about: dict[str, Any],
    globs: Sequence[str] | None, decode: int, sketched: bool, some: bool,
) -> tuple[TraceFile, Steps]:  # fmt: skip
    """Open a trace that an earlier run may have begun, and say which of its steps are missing."""
    from lockstep.parity.resuming.trace_steps import Resumed, kept_trace

    planned = names_of(model.checkpoint, cached=True)
    file = kept_trace(model, path, room, about, globs, decode, planned, sketched)
    return file, Resumed(model, file, globs, decode, some=some)


def cut_to(excerpt: Excerpt, write: Trace) -> Trace:
    """Return a `trace` callback that writes some tokens of the prompt."""
    return lambda name, value: write(name, excerpt.cut(name, to_numpy(value)))


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
        one.say(**{key: json.dumps(value) for key, value in said.items()})
        if batch and isinstance(one, TraceFile):
            del one.writer.header["__metadata__"]["tokens"]  # which the writer always begins with
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
