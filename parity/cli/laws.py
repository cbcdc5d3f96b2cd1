"""Hold a port to laws that need no oracle: it is only compared with itself.

The port is a Python callable, MODULE:NAME, or a command that reads a line of token ids and writes
logits: docs/parity/laws.md defines both. Laws that it offers no way to try are left out by name.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from typing import Any

from lockstep.parity.cli.arguments import DTYPES, whole
from lockstep.parity.cli.output import emit

HELP = "what a port must obey without any oracle"
EXAMPLE = '  lockstep laws mymodule:model\n  lockstep laws "./my_port --model MODEL" --vocab 32000'


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "port", metavar="COMMAND|MODULE:NAME", help="a Python callable, or a command in quotes"
    )
    parser.add_argument(
        "--vocab",
        metavar="N",
        type=whole,
        help="how many tokens the port knows (default: as it says)",
    )
    parser.add_argument(
        "--length", metavar="N", type=whole, default=12, help="tokens of a prompt (default 12)"
    )
    parser.add_argument(
        "--seed", metavar="S", type=whole, default=0, help="what prompts are drawn from (default 0)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES,
        help="what the port computes in (default: as the bits of its logits say)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=whole, default=300,
        help="how long a command may take for one prompt (default 300)",
    )  # fmt: skip


def run(options: Namespace) -> int:
    from lockstep.parity.laws.finding import BROKEN
    from lockstep.parity.laws.run import LAWS, laws
    from lockstep.parity.laws.table import described, document
    from lockstep.parity.progress import Progress

    check_numbers(options)
    with redirect_stdout(sys.stderr), Progress(len(LAWS)) as progress:
        bench, found = laws(
            opened(options), vocabulary=options.vocab, length=options.length, seed=options.seed,
            dtype=options.dtype, progress=progress,
        )  # fmt: skip
    about = {"seed": options.seed, "vocabulary": bench.vocabulary}
    emit(options, lambda: document(bench, found, **about), lambda: described(bench, found))
    return int(any(one.status == BROKEN for one in found))


def check_numbers(options: Namespace) -> None:
    from lockstep.reference.checkpoint.errors import InputError

    limits = {"vocab": 1 << 31, "length": 1 << 20, "timeout": 100_000}
    for name, most in limits.items():
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise InputError(f"--{name}", f"{value}, but should be 1 to {most}")


def opened(options: Namespace) -> Any:
    """Return the port that is asked for: MODULE:NAME if it can be one, else a command."""
    from lockstep.parity.laws.command_port import CommandPort
    from lockstep.parity.laws.python_port import PythonPort
    from lockstep.parity.named_object import looks_named, named_object

    if ":" in options.port and looks_named(options.port):
        return PythonPort(options.port, named_object(options.port))
    return CommandPort(options.port, seconds=options.timeout)
