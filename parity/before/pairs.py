"""One tensor of both sides, and what can be said of it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.before.figures import STEPS, grid, identical, on_grid, wide


@dataclass(frozen=True)
class Verdict:
    """What is otherwise with one tensor. `harmless` is a convention, and no fault."""

    kind: str
    fault: str | None
    text: str
    fix: str
    harmless: bool = False
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """One tensor of both sides: as stored, and in float32 on the coarser grid of the two."""

    name: str
    found: np.ndarray
    wanted: np.ndarray
    x: np.ndarray
    y: np.ndarray
    dtype: str
    heads: tuple[int, int] | None = None
    width: int = 0
    packed: bool = False
    gguf: bool = False
    scaled: bool = False  # the model multiplies its embedding by the root of the width

    def fits(self, values: np.ndarray) -> bool:
        """Say whether theirs are these values of ours, rounded to the coarser grid at most."""
        return identical(self.x, on_grid(values, self.dtype))


def pair(name: str, found: np.ndarray, wanted: np.ndarray, **about: Any) -> Pair:
    kinds = [grid(found), grid(wanted)]
    dtype = max(kinds, key=list(STEPS).index)
    x, y = (on_grid(wide(array), dtype) for array in (found, wanted))
    return Pair(name, found, wanted, x, y, dtype, **about)
