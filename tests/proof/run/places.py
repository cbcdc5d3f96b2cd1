"""The checkpoints of a run, each made once, and what the reference says of them."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import reference
from lockstep.parity.graph import Graph, record
from tests.proof import builds

KEPT = 40  # models


class Places:
    """Builds in a folder, by name and seed."""

    def __init__(self, root: Path):
        self.root = root
        self.model = lru_cache(KEPT)(self.load)

    def folder(self, build: str, seed: int) -> tuple[Path, Path | None]:
        """Return a build's folder, and that of its adapter."""
        name, _, adapter = build.partition("+")
        folder = self.root / f"{name}-{seed}"
        if not folder.exists():
            builds.make(name, folder, seed=seed)
        if not adapter:
            return folder, None
        beside = self.root / f"{build}-{seed}"
        if not beside.exists():
            builds.adapter(adapter, folder, beside, seed=seed)
        return folder, beside

    def load(self, build: str, seed: int) -> Any:
        return reference.load(*self.folder(build, seed))

    def tokens(self, build: str, seed: int, length: int, rows: int = 1) -> np.ndarray:
        return builds.tokens(seed, self.folder(build, seed)[0], length=length, rows=rows)

    def graph(self, build: str, seed: int, length: int) -> Graph:
        return record(self.model(build, seed), self.tokens(build, seed, length))
