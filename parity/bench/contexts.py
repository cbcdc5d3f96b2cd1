"""What a long text costs: time and memory of each cache over the length of the context.

    python -m lockstep.parity.bench.contexts MODEL
    python -m lockstep.parity.bench.contexts MODEL --lengths 512,8192,32768 --caches growing,int8
    python -m lockstep.parity.bench.contexts MODEL --resume rows.jsonl --json profile.json

Each cache at each length has a process of its own, which reads a prompt by chunks and goes on token
by token. Memory is what the system had to give to that process (footprint.py), and what the device
counts. With --resume each row goes to a file as it is measured; given again, the command measures
only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lockstep.parity.bench.choice import OURS
from lockstep.parity.cli.arguments import above_zero
from lockstep.parity.cli.output import counted, emit, in_units, printable, put, warn
from lockstep.parity.cli.targets import check_target
from lockstep.parity.resuming.journal import Journal
from lockstep.parity.resuming.surroundings import surroundings
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.stores.kinds import KINDS, ROTATING, CacheOptions, check_kind, kept_whole

LENGTHS, CHUNK, STEPS = (512, 8192, 32768), 512, 4
CACHES = tuple(kind for kind in KINDS if kind not in ("concatenating", "preallocated"))
FIGURES = ("prefill_s", "prefill_cpu_s", "step_s", "step_cpu_s", "cache_arithmetic", "cache_held",
           "loaded", "peak", "files")  # fmt: skip
NO_ROW = "holds a record that is no row; it is left as it is"
SIZE, KEEP = 4096, 4  # tokens of a ring, and of its first ones that stay
Row = dict[str, Any]


def cache_settings(kind: str, length: int, steps: int) -> dict[str, int]:
    """Return what `make_cache` is told of a kind."""
    if kind in ROTATING:
        return {"size": SIZE, "keep": KEEP}
    return {"room": length + steps} if kind == "preallocated" else {}


def planned(options: argparse.Namespace, checkpoint: Checkpoint) -> list[Row]:
    """Return what is to be measured. Raises: InputError for what cannot be."""
    context = context_length(checkpoint.config)
    plan = []
    for length in options.lengths:
        if length + options.steps > context:
            what = (
                f"{length} tokens and {options.steps} steps, but the model's context is {context}"
            )
            raise InputError("--lengths", what)
        for backend in options.backends:
            for kind in options.caches:
                said = cache_settings(kind, length, options.steps)
                check_kind(kind, CacheOptions(**said))
                plan.append({"backend": backend, "kind": kind, "length": length, "told": said})
    return plan


def measure(options: argparse.Namespace, one: Row) -> Row:
    """Measure one row in a process of its own; a process that dies is a row that says so."""
    request = {**one, "model": str(options.model), "chunk": options.chunk, "steps": options.steps}
    command = [sys.executable, "-m", "lockstep.parity.bench.context", json.dumps(request)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode < 0:
        return {**one, "ended": f"by signal {-done.returncode}"}
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode or not lines:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {**one, "ended": show(last[0] if last else "without an answer", 120)}
    answer = json.loads(lines[-1])
    if "refused" in answer:
        raise InputError(*answer["refused"])
    return {**one, **answer["done"]}


def profile(
    options: argparse.Namespace, checkpoint: Checkpoint, journal: Journal | None,
    measured: Callable[[argparse.Namespace, Row], Row] = measure,
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of a plan; what the journal has is not measured again, if it did not die."""
    known = {} if journal is None else known_rows(journal)
    for one in planned(options, checkpoint):
        row = known.get(key_of(one))
        if row is None or "ended" in row:
            row = measured(options, one)
            if journal is not None:
                journal.add(row)
        yield row


def known_rows(journal: Journal) -> dict[tuple[Any, ...], Row]:
    """Return the rows of a journal. Raises: InputError if one of its records is no row."""
    for row in journal.records:
        figures = [row.get(name) for name in FIGURES]
        names = type(row.get("backend")) is str and type(row.get("kind")) is str
        whole = "ended" in row or all(type(one) in (int, float) for one in figures)
        if not names or type(row.get("length")) is not int or not whole:
            raise InputError(journal.path, NO_ROW)
    return {key_of(row): row for row in journal.records}


def key_of(row: Row) -> tuple[Any, ...]:
    return row.get("backend"), row.get("kind"), row.get("length")


def journal_of(options: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """Open the file of rows that were measured, for this model and with these options."""
    if options.resume is None:
        return nullcontext(None)
    from lockstep.parity.prompt_cache.identity import of_checkpoint

    run = {"journal": "lockstep contexts", "version": 2, "chunk": options.chunk,
           "model": of_checkpoint(checkpoint).hex()[:32], "steps": options.steps,
           **surroundings("cpu"), "mlx": version_of("mlx")}  # fmt: skip
    return Rows(options.resume, run)


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Rows(Journal):
    """A journal that is left where it is: another length may be asked for."""

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


HEAD = (
    "tokens", "backend", "cache", "prefill s", "(processor)", "step ms", "(processor)",
    "cache should", "and holds", "grew by", "of which cache", "peak", "device peak",
)  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return the rows as columns."""
    from lockstep.parity.cli.output import table as columns

    lines = [HEAD, *map(line_of, rows)]
    return columns(lines, right=frozenset({0, *range(3, len(HEAD))}))


def line_of(row: Row) -> tuple[str, ...]:
    first = (str(row["length"]), row["backend"], row["kind"])
    if "ended" in row:
        return (*first, f"ended {row['ended']}", *[""] * (len(HEAD) - 4))
    alone = row.get("peak_is_alone", True)  # else the peak is that of loading too
    grew = row["peak"] - row["loaded"] - row["files"] if alone else 0
    held = row["cache_held"]
    device = in_units(row["device_peak"]) if "device_peak" in row else ""
    return (
        *first, f"{row['prefill_s']:.2f}", f"{row['prefill_cpu_s']:.2f}",
        f"{1e3 * row['step_s']:.1f}", f"{1e3 * row['step_cpu_s']:.1f}",
        in_units(row["cache_arithmetic"]), in_units(held), in_units(grew) if grew > 0 else "",
        f"{held / grew:.0%}" if grew >= held else "", in_units(row["peak"]), device,
    )  # fmt: skip


def uncoded(kinds: list[str], checkpoint: Checkpoint) -> list[str]:
    """Say which caches hold plain numbers after all: for heads as narrow they have no codes."""
    found = ", ".join(kind for kind in kinds if kept_whole(kind, checkpoint.config))
    what = "no codes for heads as wide as this model's; there the cache holds plain numbers"
    return [f"{found}: {what}"] if found else []


def whole_numbers(text: str) -> list[int]:
    return [above_zero(one) for one in text.split(",")]


def names_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        for one in (found := text.split(",")):
            if one not in known:
                raise argparse.ArgumentTypeError(f"{show(one, 40)} is none of {', '.join(known)}")
        return found

    return names


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.contexts", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("model", metavar="MODEL", type=Path)
    made.add_argument("--lengths", metavar="N,N", type=whole_numbers, default=[*LENGTHS],
                      help="tokens of the prompts (default 512,8192,32768)")  # fmt: skip
    made.add_argument("--caches", metavar="NAME,...", type=names_of(KINDS), default=[*CACHES],
                      help=f"default {','.join(CACHES)}")  # fmt: skip
    made.add_argument("--backends", metavar="NAME,...", type=names_of(OURS), default=["cpu"],
                      help="of reference, cpu and mlx (default cpu)")  # fmt: skip
    made.add_argument("--chunk", metavar="N", type=above_zero, default=CHUNK,
                      help="tokens of a prompt that are read at once (default 512)")  # fmt: skip
    made.add_argument("--steps", metavar="N", type=above_zero, default=STEPS,
                      help="tokens behind it; the quickest counts (default 4)")  # fmt: skip
    made.add_argument("--resume", metavar="FILE", help="keep rows in FILE, and go on from it")
    made.add_argument("--json", metavar="FILE", help="the rows; - prints them and nothing else")
    return made


def check_json(options: argparse.Namespace) -> None:
    """Raise InputError if --json could not be written, or would be written over what is kept."""
    if options.json in (None, "-"):
        return
    if options.json == "":
        raise InputError("''", "is no name of a file to write")
    target = Path(options.json)
    check_target(target, [options.model])
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise InputError(target, "cannot be written")
    if options.resume is not None and target.resolve() == Path(options.resume).resolve():
        raise InputError(target, "is to hold both the JSON and what is kept; name two files")


def main(argv: list[str] | None = None) -> int:
    options, rows = parser().parse_args(argv), []
    try:
        check_json(options)
        checkpoint = open_checkpoint(options.model)
        warn(uncoded(options.caches, checkpoint))
        with journal_of(options, checkpoint) as journal:
            for row in profile(options, checkpoint, journal):
                rows.append(row)
                print(f"{len(rows)}: {' '.join(line_of(row))}", file=sys.stderr)
        emit(options, lambda: rows, lambda: printable(table(rows)))
    except InputError as error:
        print(f"lockstep: error: {error}{kept_line(options, rows)}", file=sys.stderr)
        return 2
    except OSError as error:  # of the JSON: what was measured is shown all the same
        put(printable(table(rows)) if rows else "")
        print(f"lockstep: error: {options.json}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"lockstep: interrupted{kept_line(options, rows)}", file=sys.stderr)
        return 130
    return 0


def kept_line(options: argparse.Namespace, rows: list[Row]) -> str:
    return f"; {options.resume} has {counted(rows, 'row')}" if options.resume and rows else ""


if __name__ == "__main__":
    sys.exit(main())
