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
    from pathlib import Path

    from lockstep.parity.demo.story import tell
    from lockstep.reference.checkpoint.errors import InputError

    if options.out is not None and Path(options.out).exists() and not Path(options.out).is_dir():
        raise InputError(options.out, "is a file, but should be a folder to keep the traces in")
    quiet = options.json == "-"
    story = tell(lambda text: None if quiet else put(printable(text)), options.out)
    emit(options, lambda: story, lambda: "")
    return 0 if story["as_it_should"] else 1
