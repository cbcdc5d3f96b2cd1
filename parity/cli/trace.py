"""Run a model and write its taps to a trace file as they are made, in bounded memory.

The file appears when the run is complete. `lockstep diff` compares it with another, or with the
dump of a port. An architecture that Lockstep does not have is run by transformers, whose torch
modules then are the taps: --backend transformers.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import (
    add_adapter,
    add_backend,
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
    parser.add_argument(
        "--taps", metavar="GLOB,...", help="only taps of these names, such as '*.mlp.*,logits'"
    )
    parser.add_argument(
        "--decode", metavar="N", type=whole, default=0,
        help="then N greedy steps, whose taps are step.1/... to step.N/...",
    )  # fmt: skip
    add_adapter(parser)
    add_ignore_config(parser)
    add_ranks(parser)


def run(options: Namespace) -> int:
    from pathlib import Path

    from lockstep.parity.cli.loading import load, prompt_rows
    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.dumps.tracing import check_globs, trace_run
    from lockstep.parity.torch_modules.folder import require_reference
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    globs = None if options.taps is None else options.taps.split(",")
    if options.tensor_parallel > 1:
        from lockstep.parity.cli import trace_ranks

        made = trace_ranks.run(options, globs)
        return made if isinstance(made, int) else report_on(options, made)
    check_trace_target(Path(options.out_file))
    if options.backend == "transformers":
        return report_on(options, modules_run(options, globs))
    require_reference(
        options.model, f"--backend {options.backend}", "--backend transformers does not"
    )
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    check_globs(checkpoint, globs)
    tokens = prompts(prompt_rows(options, checkpoint))
    model = load(options, options.backend, options.dtype or "float32")
    made = trace_run(model, tokens, options.out_file, globs=globs, decode=options.decode)
    return report_on(options, made)


def modules_run(options: Namespace, globs: list[str] | None) -> dict[str, Any]:
    """Trace the torch modules of transformers."""
    from types import SimpleNamespace

    from lockstep.parity.cli.loading import prompt_rows
    from lockstep.parity.torch_modules.folder import checked_folder
    from lockstep.parity.torch_modules.loading import load, sizes_of
    from lockstep.parity.torch_modules.tracing import trace_modules
    from lockstep.reference.checkpoint.errors import InputError

    if options.adapter is not None:
        raise InputError(
            "--adapter", "does not go with transformers; `lockstep fuse` makes one model"
        )
    path = checked_folder(options.model)
    known = SimpleNamespace(path=path, config=sizes_of(path))
    tokens = prompts(prompt_rows(options, known))
    model = load(path, dtype=options.dtype or "float32")
    warn(list(model.warnings))
    return trace_modules(model, tokens, options.out_file, globs=globs, decode=options.decode)


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
    steps = f" and {len(decoded)} decoded" if decoded else ""
    ranks = f", {made['ranks']} ranks" if "ranks" in made else ""
    run = f"{made['backend']} in {made['dtype']}{ranks}"
    return f"{counted(made['taps'], 'tap')} of {prompt}{steps}, {run} -> {made['file']}"
