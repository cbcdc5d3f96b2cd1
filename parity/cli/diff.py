"""Compare two traces or dumps: safetensors, .npz, or a folder of .npy files.

LEFT is what RIGHT should be. With --model every value of RIGHT is also computed again from
RIGHT's own inputs, so that an error is told apart from what it inherited; one of the two must
then say its token ids, as every trace does.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_adapter, add_ignore_config
from lockstep.parity.cli.output import emit

HELP = "compare two traces or dumps"
EXAMPLE = "  lockstep diff reference.safetensors port.safetensors --model MODEL"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("left", metavar="LEFT", help="a trace or dump of what is right")
    parser.add_argument("right", metavar="RIGHT", help="a trace or dump of the port")
    parser.add_argument("--model", metavar="MODEL", help="the checkpoint that both come from")
    add_adapter(parser)
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.diff import diff
    from lockstep.parity.dump import open_dump
    from lockstep.parity.progress import Progress
    from lockstep.parity.report import report

    left, right = open_dump(options.left), open_dump(options.right)
    model = oracle(options)
    with Progress(len(right.shapes)) as progress:
        result = diff(left, right, model=model, progress=progress)
    emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def oracle(options: Namespace) -> Any:
    from lockstep.reference.checkpoint.errors import InputError

    if options.model is None:
        if options.adapter is not None:
            raise InputError("--adapter", "goes with --model: it changes a model")
        return None
    from lockstep.parity.cli.loading import load

    return load(options, "reference", "float32")
