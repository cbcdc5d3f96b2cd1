"""What an adapter is once it is read, whichever format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Adapter:
    """What is added to one projection: `scale * b @ a`, and with DoRA the length of each row.

    a (R, K), b (N, R), magnitude (N,) or None. `scale` is the whole factor: the reader of the
    format has divided by the rank where that is its convention, and nobody divides again.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    magnitude: np.ndarray | None


@dataclass(frozen=True)
class Adapters:
    """The adapters of one folder by the path of their module, and what was odd about it."""

    path: Path | None = None
    modules: Mapping[str, Adapter] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
