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
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lockstep import __version__
from lockstep.parity.bench.choice import OURS
from lockstep.parity.cli.arguments import above_zero
from lockstep.parity.cli.output import counted, in_units
from lockstep.parity.dumps.crew import cores
from lockstep.parity.resuming.journal import Journal
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.stores.kinds import KINDS, ROTATING, CacheOptions, check_kind

LENGTHS, CHUNK, STEPS = (512, 8192, 32768), 512, 4
CACHES = tuple(kind for kind in KINDS if kind not in ("concatenating", "preallocated"))
SIZE, KEEP = 4096, 4  # tokens of a ring, and of its first ones that stay
Row = dict[str, Any]


def told(kind: str, length: int, steps: int) -> dict[str, int]:
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
                said = told(kind, length, options.steps)
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
    known = {} if journal is None else {key_of(row): row for row in journal.records}
    for one in planned(options, checkpoint):
        row = known.get(key_of(one))
        if row is None or "ended" in row:
            row = measured(options, one)
            if journal is not None:
                journal.add(row)
        yield row


def key_of(row: Row) -> tuple[Any, ...]:
    return row.get("backend"), row.get("kind"), row.get("length")


def journal_of(options: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """Open the file of rows that were measured, for this model and with these options."""
    if options.resume is None:
        return nullcontext(None)
    from lockstep.parity.prompt_cache.identity import of_checkpoint

    run = {"journal": "lockstep contexts", "version": 1, "lockstep": __version__,
           "model": of_checkpoint(checkpoint).hex()[:32], "chunk": options.chunk,
           "steps": options.steps, "machine": platform.machine(), "cores": cores()}  # fmt: skip
    return Rows(options.resume, run)


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
    grew = row["peak"] - row["loaded"] - row["files"]
    device = in_units(row["device_peak"]) if "device_peak" in row else ""
    return (
        *first, f"{row['prefill_s']:.2f}", f"{row['prefill_cpu_s']:.2f}",
        f"{1e3 * row['step_s']:.1f}", f"{1e3 * row['step_cpu_s']:.1f}",
        in_units(row["cache_arithmetic"]), in_units(row["cache_held"]), in_units(grew),
        f"{row['cache_held'] / grew:.0%}" if grew > 0 else "", in_units(row["peak"]), device,
    )  # fmt: skip


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
    made.add_argument("--json", metavar="FILE", type=Path)
    return made


def main(argv: list[str] | None = None) -> int:
    options, rows = parser().parse_args(argv), []
    try:
        checkpoint = open_checkpoint(options.model)
        with journal_of(options, checkpoint) as journal:
            for row in profile(options, checkpoint, journal):
                rows.append(row)
                print(f"{len(rows)}: {' '.join(line_of(row))}", file=sys.stderr)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"; {options.resume} has {counted(rows, 'row')}" if options.resume else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return 130
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
