"""List every tap of a model: its name, its shape, and the operation that makes it.

B is the batch, L the number of tokens. Nothing is computed and no weight is read.
"""

from argparse import ArgumentParser, Namespace

from lockstep.parity.cli.arguments import add_ignore_config, add_model
from lockstep.parity.cli.output import counted, emit, table, warn

HELP = "every tap: name, shape, which op makes it"
EXAMPLE = "  lockstep taps MODEL"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.replaying.taps import taps_of
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    warn(checkpoint.warnings)
    taps = taps_of(checkpoint)
    rows = [("tap", "shape", "operation")]
    rows += [(tap["name"], ", ".join(map(str, tap["shape"])), tap["op"]) for tap in taps]
    emit(options, lambda: taps, lambda: f"{table(rows)}\n\n{counted(taps, 'tap')}")
    return 0
