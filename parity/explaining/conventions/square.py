"""Heads as wide as the prompt is long: their shape does not say which axis runs over the tokens.

Keys that lie as they are multiplied by, with the tokens last, are turned by their shape alone. Of a
square the values have to say it: read one way they are wrong, and read the other way right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial

TURNED = "{tap} has its tokens last: its values say so, as its shape does not"


def read_turned(trial: Trial) -> Iterator[str]:
    """Turn the square heads that are right with their tokens last; yield a line for each value."""
    for number in sorted(trial.dumped):
        if not is_square(trial, number):
            continue
        piece = trial.graph.piece(number, trial.dumped)
        turned = {number: np.swapaxes(trial.dumped[number], -1, -2)}
        if trial.judge(piece).passed or not trial.over(turned).judge(piece).passed:
            continue
        trial.put(turned)
        trial.forget()
        yield TURNED.format(tap=trial.graph.calls[number].taps[0])


def is_square(trial: Trial, number: int) -> bool:
    """Say whether a value (B, H, L, D) may be judged, and has as many numbers as tokens."""
    shape, axes = trial.graph.shapes[number], trial.graph.token_axes[number]
    heads = len(shape) == 4 and axes == (2,) and shape[2] == shape[3]
    return heads and trial.graph.judges(number)
