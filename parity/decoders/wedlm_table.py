"""What each step of WeDLM's decoder did, for a reader."""

from collections.abc import Iterable, Sequence

from lockstep.parity.cli.output import table
from lockstep.reference.scheduling.diffusion_window import Step

HEAD = ("step", "input", "positions", "committed", "filled in", "window after")


def step_table(steps: Iterable[Step], mask: int) -> str:
    """Lay out steps: inputs in physical order, M a mask, positions those of the text."""
    rows = [
        (
            str(number),
            listed(["M" if token == mask else token for token in step.tokens]),
            listed(step.positions),
            listed(step.committed),
            listed(step.filled),
            listed(["M" if token is None else token for token in step.after]),
        )
        for number, step in enumerate(steps, 1)
    ]
    return table([HEAD, *rows])


def listed(things: Sequence[object]) -> str:
    return " ".join(map(str, things)) or "-"
