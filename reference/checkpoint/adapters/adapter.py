"""What an adapter is once it is read, whichever format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Adapter:
    """What is added to one matrix: `scale * b @ a`, and with DoRA the length of each row.

    a (R, K), b (N, R), magnitude (N,) or None; for a stack of experts a (X, R, K), b (X, N, R). The
    matrix of an embedding is its table, a row for each token. `scale` is the whole factor: the
    reader of the format has divided by the rank where that is its convention, and nobody divides
    again.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    magnitude: np.ndarray | None

    def __getitem__(self, expert: int) -> Adapter:
        """Return what is added to the matrix of one expert."""
        return replace(self, a=self.a[expert], b=self.b[expert])


@dataclass(frozen=True)
class Adapted:
    """The matrices of experts, each with what an adapter adds to it; `adapted[3]` is one of them.

    `weight` is a stack, or one matrix of it, in whatever form a backend holds it.
    """

    weight: Any
    adapter: Adapter

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def __getitem__(self, expert: int) -> Adapted:
        return Adapted(self.weight[expert], self.adapter[expert])


@dataclass(frozen=True)
class Adapters:
    """The adapters of one folder by the path of their module, and what was odd about it.

    `weights` are whole tensors that take the place of the base's, by the name of the module that
    uses them: with a tied head, `lm_head.weight` is the head's alone, and the embedding stays.
    """

    path: Path | None = None
    modules: Mapping[str, Adapter] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
