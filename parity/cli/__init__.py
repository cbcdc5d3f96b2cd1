"""The command line. One command a file; nothing heavy is imported before a command runs."""

import sys
from collections.abc import Sequence

from lockstep.parity.cli.boundary import guarded
from lockstep.parity.cli.parser import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 parity, 1 divergence, 2 bad input, 70 our fault,
    130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    return options.run(options)
