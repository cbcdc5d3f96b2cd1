"""Run a model and write every tap to a trace file, as it is made."""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_backend, add_model, add_prompt, whole
from lockstep.parity.cli.output import emit

HELP = "write a model's activations to a file"
EXAMPLE = "  lockstep trace MODEL --tokens 1,2,3 --backend mlx -o mlx.safetensors"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser)
    add_backend(parser, default="reference", dtype="float32")
    parser.add_argument("-o", "--out", metavar="FILE", required=True, help="the trace file to write")
    parser.add_argument("--taps", metavar="GLOB,...", help="only taps of these names, as *.mlp,logits")
    parser.add_argument(
        "--decode", metavar="N", type=whole, default=0,
        help="then N greedy steps, whose taps are step.1/... to step.N/...",
    )  # fmt: skip


def run(options: Namespace) -> int:
    from lockstep.parity.cli.loading import load, prompt_tokens
    from lockstep.parity.tracing import trace_run

    dtype = options.dtype or "float32"
    refuse_target(options)
    model = load(options, options.backend, dtype)
    tokens = prompt_tokens(options, model.checkpoint)
    globs = options.taps.split(",") if options.taps else None
    made = trace_run(model, tokens, options.out, globs=globs, decode=options.decode)
    emit(options, lambda: made, lambda: described(made))
    return 0


def refuse_target(options: Namespace) -> None:
    """Refuse a target that would overwrite the model, or is no file, before anything runs."""
    from pathlib import Path

    from lockstep.reference.checkpoint.errors import InputError

    target, model = Path(options.out), Path(options.model)
    if target.exists() and not target.is_file():
        raise InputError(target, "is not a file, so no trace can be written there")
    if not target.parent.is_dir():
        raise InputError(target, "cannot be written: its folder does not exist")
    if model.is_dir() and target.resolve().parent == model.resolve():
        raise InputError(target, "lies in the model's own folder; write the trace elsewhere")


def described(made: dict[str, Any]) -> str:
    steps = f" and {len(made['decoded'])} decoded" if made["decoded"] else ""
    return f"{made['taps']} taps of {len(made['tokens'])} tokens{steps} -> {made['file']}"
