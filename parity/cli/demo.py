"""The embedded example, end to end: a model, a port of it with seven bugs, and their names.

Needs no download. With --out the model, the dumps and the reports are kept.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from lockstep.parity.cli.output import emit, printable, put

HELP = "the embedded example, end to end, no download"
EXAMPLE = "  lockstep demo --out demo"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="keep the model, dumps and reports here")


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
    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.demo.story import DUMPS, FOLDERS
    from lockstep.reference.checkpoint.errors import InputError, show

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(out, "is a file, but should be a folder to keep the dumps in")
    if not out or "\0" in out:
        raise InputError(show(out), "is no name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in DUMPS:
        check_trace_target(folder / f"{name}.safetensors")
    for name, source in FOLDERS.items():
        check_copy(folder / name, source)


def check_copy(target: Path, source: Path) -> None:
    """Raise InputError if a copy of a folder would replace a file that is none of it."""
    from lockstep.reference.checkpoint.errors import InputError

    if target.exists() and not target.is_dir():
        raise InputError(target, "is a file, but should be a folder to copy to")
    for path in source.iterdir():
        there = target / path.name
        if there.exists() and (not there.is_file() or there.read_bytes() != path.read_bytes()):
            raise InputError(there, "exists and is not the demo's; it is left as it is")
