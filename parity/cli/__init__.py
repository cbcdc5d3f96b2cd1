"""The command line. One command a file; nothing heavy is imported before a command runs."""

import sys
from collections.abc import Sequence

from lockstep.parity.cli.boundary import OutOfMemory, guarded
from lockstep.parity.cli.parser import parse
from lockstep.parity.collector import look_no_more

PROMPTED = ("trace", "check", "diff", "explain", "generate", "chat")  # what reads a prompt


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 parity, 1 divergence, 2 bad input, 70 our fault,
    130 interrupted."""
    if argv is None:
        prepare_process()
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = guarded(lambda: run(arguments))
    if argv is None:
        look_no_more()
    return code


def run(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    from lockstep.parity.cli.targets import check_targets

    check_targets(options)
    options.arguments = arguments  # for a command that starts itself again, as several ranks
    try:
        return options.run(options)
    except MemoryError:
        if arguments[0] in PROMPTED:
            raise
        raise OutOfMemory from None


def prepare_process() -> None:
    """Keep libraries' warnings off standard error, and print what a narrow encoding has not."""
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore
