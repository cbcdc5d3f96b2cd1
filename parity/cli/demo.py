"""The embedded example, end to end: generate, check layer by layer, plant a bug and find it.

Needs no download. With --out the traces of the right and the broken run are kept.
"""

from argparse import ArgumentParser, Namespace

from lockstep.parity.cli.output import emit, printable, put

HELP = "the embedded example, end to end, no download"
EXAMPLE = "  lockstep demo --out demo"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="keep the traces and the result here")


def run(options: Namespace) -> int:
    from lockstep.parity.demo.story import tell

    if options.out is not None:
        prepare(options.out)
    quiet = options.json == "-"
    story = tell(lambda text: None if quiet else put(printable(text)), options.out)
    emit(options, lambda: story, lambda: "")
    return 0 if story["as_it_should"] else 1


def prepare(out: str) -> None:
    """Make the folder and look at what would be replaced, before the demo runs."""
    from pathlib import Path

    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.demo.story import KEPT
    from lockstep.reference.checkpoint.errors import InputError, show

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(out, "is a file, but should be a folder to keep the traces in")
    if not out or "\0" in out:
        raise InputError(show(out), "is no name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        check_trace_target(folder / f"{name}.safetensors")
