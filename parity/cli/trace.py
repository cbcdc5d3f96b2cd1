"""Run a model and write its taps to a trace file as they are made, in bounded memory.

The file appears when the run is complete. `lockstep diff` compares it with another, or with the
dump of a port. An architecture that Lockstep does not have is run by transformers, whose torch
modules then are the taps: --backend transformers.

With --resume a run that is interrupted, or finds the disk full, leaves what it has in FILE.part;
the same command, given again, checks that and goes on from there, to the same bits.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.parity.cli.arguments import (
    add_adapter,
    add_backend,
    add_choice,
    add_ignore_config,
    add_model,
    add_prompt,
    whole,
)
from lockstep.parity.cli.output import counted, emit, printable, warn
from lockstep.parity.cli.ranks import add_ranks

HELP = "write a model's activations to a file"
EXAMPLE = """\
  lockstep trace MODEL --tokens 1,2,3 --backend mlx -o mlx.safetensors
  lockstep trace MODEL --tokens 1,2,3 --backend transformers -o truth.safetensors
  lockstep trace MODEL --tokens 1,2,3 --tokens 4,5 -o batch.safetensors
  lockstep trace MODEL --prompt "$(cat long.txt)" --positions last:8 -o end.safetensors
  lockstep trace MODEL --prompt "$(cat long.txt)" --sketch -o long.sketch
  lockstep trace MODEL --tokens 1,2,3 --decode 500 --resume -o long.safetensors
  lockstep trace MODEL --prompt "$(cat long.txt)" --positions last:8 --backend cpu --resume -o end
  lockstep trace MODEL --tokens 1,2,3 --tensor-parallel 2 -o 'run.{rank}.safetensors'"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser, batch=True)
    add_backend(parser, default="reference", dtype="float32", also=("transformers",))
    parser.add_argument(
        "-o", "--out", dest="out_file", metavar="FILE", required=True,
        help="the trace to write; a trace that is there is replaced, no other file; {rank} in its "
        "name is the number of each of several ranks",
    )  # fmt: skip
    add_choice(parser)
    parser.add_argument(
        "--sketch", action="store_true",
        help="of each tap only a sketch, some hundred bytes, for `lockstep diff`",
    )  # fmt: skip
    parser.add_argument(
        "--decode", metavar="N", type=whole, default=0,
        help="then N greedy steps, whose taps are step.1/... to step.N/...",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true",
        help="keep what is written in FILE.part if the run ends early, and go on from there",
    )  # fmt: skip
    add_adapter(parser)
    add_ignore_config(parser)
    add_ranks(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.cli.choosing import check_positions, globs_of
    from lockstep.parity.cli.loading import load, prompt_rows
    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.dumps.tracing import check_globs, trace_run
    from lockstep.parity.parallel.rank_files import check_one_name
    from lockstep.parity.torch_modules.folder import require_reference
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    globs = globs_of(options)
    if options.tensor_parallel > 1:
        from lockstep.parity.cli import trace_ranks

        made = trace_ranks.run(options, globs)
        return made if isinstance(made, int) else report_on(options, made)
    check_one_name(options.out_file)
    check_trace_target(Path(options.out_file))
    check_positions(options)
    if options.backend == "transformers":
        return report_on(options, modules_run(options, globs))
    require_reference(
        options.model, f"--backend {options.backend}", "--backend transformers does not"
    )
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    check_globs(checkpoint, globs)
    rows = prompt_rows(options, checkpoint)
    check_positions(options, rows)
    model = load(options, options.backend, options.dtype or "float32")
    with telling(options):
        made = trace_run(
            model, prompts(rows), options.out_file, globs=globs, decode=options.decode,
            at=options.positions, sketched=options.sketch, resume=options.resume,
        )  # fmt: skip
    return report_on(options, made)


@contextmanager
def telling(options: Namespace) -> Iterator[None]:
    """Say on standard error what an interrupted run leaves, or has left."""
    from lockstep.parity.dumps.trace_file import Unwritten
    from lockstep.parity.resuming.kept_trace import is_written, part_of, what_is_kept
    from lockstep.reference.checkpoint.errors import InputError

    path = Path(options.out_file)
    if not options.resume and is_written(path):
        warn([f"{part_of(path)} is being written by another run, which will replace {path}"])
    elif not options.resume and (kept := what_is_kept(path)):
        warn([f"{part_of(path)} holds {kept} of a run that did not end, and stays: --resume goes "
              "on there, if it is this run"])  # fmt: skip
    try:
        yield
    except Unwritten as error:
        raise InputError(error.path, error.what, kept_line(path, options) or None) from None
    except (KeyboardInterrupt, SystemExit, MemoryError):
        if line := kept_line(path, options):
            print(printable(f"lockstep: {line}"), file=sys.stderr)
        raise


def kept_line(path: Path, options: Namespace) -> str:
    """Say what is kept of a run that has ended early; nothing if there is nothing."""
    from lockstep.parity.resuming.kept_trace import part_of, what_is_kept

    kept = what_is_kept(path) if options.resume else ""
    return f"{kept} kept in {part_of(path)}: the same command goes on there" if kept else ""


def modules_run(options: Namespace, globs: list[str] | None) -> dict[str, Any]:
    """Trace the torch modules of transformers."""
    from types import SimpleNamespace

    from lockstep.parity.cli.choosing import check_positions
    from lockstep.parity.cli.loading import prompt_rows
    from lockstep.parity.torch_modules.folder import checked_folder
    from lockstep.parity.torch_modules.loading import load, sizes_of
    from lockstep.parity.torch_modules.tracing import trace_modules
    from lockstep.reference.checkpoint.errors import InputError

    if options.adapter is not None:
        raise InputError(
            "--adapter", "does not go with transformers; `lockstep fuse` makes one model"
        )
    if options.resume:
        what = "does not go with transformers: its modules run from the beginning, nothing is kept"
        raise InputError("--resume", what)
    if options.sketch:
        raise InputError("--sketch", "does not go with transformers; `lockstep dump sketch` does")
    path = checked_folder(options.model)
    known = SimpleNamespace(path=path, config=sizes_of(path))
    rows = prompt_rows(options, known)
    check_positions(options, rows)
    model = load(path, dtype=options.dtype or "float32")
    warn(list(model.warnings))
    return trace_modules(
        model, prompts(rows), options.out_file,
        globs=globs, decode=options.decode, at=options.positions,
    )  # fmt: skip


def prompts(rows: list[list[int]]) -> list[int] | list[list[int]]:
    """Return a prompt if there is but one, else those of a batch."""
    return rows[0] if len(rows) == 1 else rows


def report_on(options: Namespace, made: dict[str, Any]) -> int:
    emit(options, lambda: made, lambda: printable(described(made)))
    return 0


def described(made: dict[str, Any]) -> str:
    if "batch" in made:
        lengths = ", ".join(str(len(row)) for row in made["batch"])
        prompt, decoded = f"a batch of {lengths} tokens", made["batch_decoded"][0]
    else:
        prompt, decoded = counted(made["tokens"], "token"), made["decoded"]
    if "positions" in made:
        prompt = f"{positions_of(made['positions'])} of {prompt}"
    steps = f" and {len(decoded)} decoded" if decoded else ""
    steps += ", sketched" * bool(made.get("sketched"))
    ranks = f", {made['ranks']} ranks" if "ranks" in made else ""
    run = f"{made['backend']} in {made['dtype']}{ranks}"
    line = f"{counted(made['taps'], 'tap')} of {prompt}{steps}, {run} -> {made['file']}"
    line += f"\n{made['blocks']}" if "blocks" in made else ""
    return line + (resumed(**made["resumed"]) if "resumed" in made else "")


def resumed(taps: int, again: int) -> str:
    """Say how much of a trace was there, and what had to be made again to go on."""
    had = f"{counted(taps, 'tap')} of it" if taps else "a layer's result"
    said = f"\n{had} from the run that was interrupted"
    if not again:
        return said
    return f"{said}; {counted(again, 'operation')} made again, whose results are not in the file"


def positions_of(said: str) -> str:
    """Say how many positions a trace has, or how many of each row: 8, or 8 and 3."""
    from json import loads

    rows = loads(said)
    counts = [len(row) for row in rows] if rows and isinstance(rows[0], list) else [len(rows)]
    if len(counts) == 1:
        return counted(counts[0], "position")
    return f"{', '.join(map(str, counts))} positions"
