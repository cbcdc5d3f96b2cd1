"""The grammar of the command line."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

COMMANDS = (
    "demo", "inspect", "tokenize", "taps", "trace", "check", "diff", "explain", "faults",
    "generate", "chat", "fuse", "quantize", "sensitivity", "bench", "report", "conformance", "laws",
    "dump",
)  # fmt: skip
EPILOG = """\
exit codes:
  0 parity, or what was asked for   1 divergence, or bugs   2 bad input
  70 a bug in Lockstep   130 interrupted

begin with:
  lockstep demo              a port with seven bugs, and their names
  lockstep explain --help    what to do with a port of your own"""


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one line, and takes no abbreviations."""

    def error(self, message: str) -> NoReturn:
        from lockstep.reference.checkpoint.errors import clip_end, escape

        said = clip_end(escape(message), 330)
        print(f"lockstep: error: {said} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


class Help(argparse.RawDescriptionHelpFormatter):
    """Leaves room for the longest command: argparse forgets that commands are indented."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        self._action_max_length += 2


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of one command; `options.run` runs it. A bad one exits with 2."""
    from lockstep import __version__

    parser = Parser(
        prog="lockstep",
        description="Tells whether a port of a language model is right, and where it is not.",
        epilog=EPILOG,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Parser
    )
    first = arguments[0] if arguments else None
    for name in (first,) if first in COMMANDS else COMMANDS:  # what nobody asks for is not imported
        add_command(commands, name)
    options, unknown = parser.parse_known_args(arguments)
    refuse = vars(options).pop("refuse")  # as the command does, which names its own help
    if unknown:
        refuse(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def add_command(commands: argparse._SubParsersAction, name: str) -> None:
    command = import_module(f"lockstep.parity.cli.{name}")
    parser = commands.add_parser(
        name,
        help=command.HELP,
        description=command.__doc__,
        epilog=f"example:\n{command.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the result as JSON; - prints it and nothing else"
    )
    parser.set_defaults(run=command.run, refuse=parser.error)
