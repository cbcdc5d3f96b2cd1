"""Token ids that a step has chosen, and that the host has not seen."""

from dataclasses import dataclass

import numpy as np

from lockstep.fast.shapes import Array


@dataclass(frozen=True)
class Chosen:
    """Ids (B, L) on the device. Whoever chose them vouches that they are ids: nobody looks."""

    ids: Array

    def places(self) -> np.ndarray:
        """Return as many ids that say nothing, (B, L): they too have positions."""
        return np.zeros(self.ids.shape, np.int64)
