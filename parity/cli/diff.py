"""Compare two traces or dumps: safetensors, .npz, or a folder of .npy files.

LEFT is what RIGHT should be. With --model every value of RIGHT is also computed again from
RIGHT's own inputs, so that an error is told apart from what it inherited; one of the two must
then say its token ids, as every trace does. Of an architecture that Lockstep does not have it is
the torch modules of transformers that compute it again.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_adapter, add_ignore_config
from lockstep.parity.cli.output import emit
from lockstep.parity.cli.ranks import add_dumps_of_ranks, dumps_of_ranks

HELP = "compare two traces or dumps"
EXAMPLE = """\
  lockstep diff reference.safetensors port.safetensors --model MODEL
  lockstep diff reference.safetensors 'port.{rank}.safetensors' --tensor-parallel 2"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("left", metavar="LEFT", help="a trace or dump of what is right")
    parser.add_argument("right", metavar="RIGHT", help="a trace or dump of the port")
    parser.add_argument("--model", metavar="MODEL", help="the checkpoint that both come from")
    parser.add_argument(
        "--backend", choices=("reference", "transformers"),
        help="what computes again (default reference, if it has the architecture)",
    )  # fmt: skip
    add_adapter(parser)
    add_ignore_config(parser)
    add_dumps_of_ranks(parser, "RIGHT", "perhaps LEFT")


def run(options: Namespace) -> int:
    from lockstep.parity.diff import diff
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report

    if ranks := dumps_of_ranks(options, options.right):
        return of_ranks(options, ranks)
    dumps_of_ranks(options, options.left)  # which refuses a name for several
    left, right = open_dump(options.left), open_dump(options.right)
    model = oracle(options)
    with Progress(len(right.shapes)) as progress:
        result = diff(left, right, model=model, progress=progress)
    emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def of_ranks(options: Namespace, right: list[Any]) -> int:
    """Compare the dumps of all ranks with those of others, or with one of the whole model."""
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.parallel.diff import diff_ranks
    from lockstep.parity.parallel.rank_files import has_ranks
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report
    from lockstep.reference.checkpoint.errors import InputError

    if options.model is not None:
        raise InputError("--model", "with --tensor-parallel is for `lockstep explain MODEL RIGHT`")
    oracle(options)  # which refuses what goes with a model
    of_all = has_ranks(options.left)
    left = dumps_of_ranks(options, options.left) if of_all else [open_dump(options.left)]
    with Progress(len(right[0].shapes)) as progress:
        result = diff_ranks(left, right, paths=(options.left, options.right), progress=progress)
    emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def oracle(options: Namespace) -> Any:
    """Return a reference model, or a path, which means the torch modules of what lies there."""
    from lockstep.reference.checkpoint.errors import InputError

    if options.model is None:
        for name in ("adapter", "backend"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name}", "goes with --model: it says what that is")
        return None
    from lockstep.parity.torch_modules.folder import (
        checked_folder,
        has_reference,
        require_reference,
    )

    if options.backend == "transformers" or (
        options.backend is None and not has_reference(options.model)
    ):
        if options.adapter is not None:
            what = "does not go with transformers; `lockstep fuse` makes one model"
            raise InputError("--adapter", what)
        return checked_folder(options.model)
    from lockstep.parity.cli.loading import load

    require_reference(options.model, "--backend reference", "--backend transformers does not")
    return load(options, "reference", "float32")
