"""The steps of a run whose taps go to a file, and which taps do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.naming.names import matched

NAMED = "cached_"  # taps of caches grow with every step: they are written where a glob says so


class Steps:
    """The steps of a run as they are made; `Resumed` goes on from those that were."""

    def __init__(self, model: Any):
        self.model = model

    def begin(self, step: int) -> None:
        """Make ready for a step."""

    def done(self, stage: str, value: Any) -> None:
        """Take note of what a stage made, when its taps are written."""

    def fed(self, step: int, logits: Any, last: Sequence[int]) -> list[int]:
        """Return what each row is fed next: what its last logits are highest for."""
        logits = to_numpy(logits)
        return np.argmax(logits[np.arange(len(logits)), last], axis=-1).tolist()

    def said(self) -> dict[str, Any]:
        """Return what a report says of the steps."""
        return {}


class Chosen:
    """Hands the taps on that globs choose, all without any."""

    def __init__(self, write: Callable[[str, Any], None], globs: Sequence[str] | None):
        self.write, self.globs, self.caches = write, globs, names_caches(globs)

    def chooses(self, name: str) -> bool:
        return self.globs is None or matched(name, self.globs)

    def __call__(self, name: str, value: Any) -> None:
        if self.chooses(name):
            self.write(name, value)


def names_caches(globs: Sequence[str] | None) -> bool:
    """Whether a glob names what caches hold."""
    return any(NAMED in glob for glob in globs or [])
