"""Write a model with an adapter inside: a folder that any engine runs without the adapter.

Adapted weights that were packed are written dense; everything else is copied as it is.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_ignore_config, add_model
from lockstep.parity.cli.output import counted, emit, printable, warn

HELP = "write a model with an adapter inside"
EXAMPLE = "  lockstep fuse MODEL ADAPTER fused"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("adapter", metavar="ADAPTER", help="a LoRA or DoRA of mlx-lm or PEFT")
    parser.add_argument(
        "target", metavar="TARGET", help="the folder to make; one that is there must be empty"
    )
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.fusing.folder import fuse

    check_json(options)
    made = fuse(options.model, options.adapter, options.target, ignore_config=options.ignore_config)
    warn(made["warnings"])
    emit(options, lambda: made, lambda: printable(described(made)))
    return 0


def check_json(options: Namespace) -> None:
    """Raise InputError if --json would lie in the folder that is made, or be it."""
    from pathlib import Path

    from lockstep.parity.new_folder import check_new_folder
    from lockstep.reference.checkpoint.errors import InputError, show

    if not options.target or "\0" in options.target:
        raise InputError(show(options.target), "is no name of a folder to make")
    target = check_new_folder(Path(options.target), [])
    if options.json not in (None, "-") and Path(options.json).resolve().is_relative_to(target):
        raise InputError(options.json, "lies in the folder that is made; write elsewhere")


def described(made: dict[str, Any]) -> str:
    lines = [f"{counted(made['fused'], 'weight')} fused of {counted(made['tensors'], 'tensor')}"]
    if made["unpacked"]:
        lines.append(f"{len(made['unpacked'])} of them were packed and are dense now")
    if made["untied"]:
        lines.append("the head is no longer tied to the embedding: one of them has changed alone")
    if made["without_effect"]:
        lines.append(f"{len(made['without_effect'])} have an update of zero and stay as they were")
    return "\n".join([*lines, f"-> {made['target']}"])
