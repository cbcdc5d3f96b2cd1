"""Hold a port's value against what a hypothesis would have made of the port's own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.graph import Call, Evaluator, Graph
from lockstep.parity.judge import LIMITS, Judgement, judge, row_noise
from lockstep.parity.metrics import difference, rms
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.parity.graph.evaluator import Read

Rewritten = Mapping[int, Call]
FAR = 1e300  # how far off a value is that is not a number, or not of the right shape


@dataclass(frozen=True)
class Fit:
    """How far a port is from a hypothesis: own error over noise, before and after the best gain."""

    raw: float
    scaled: float


@dataclass
class Trial:
    """One dump against one graph.

    `dumped` holds the port's values by number. Everything is judged as `diff` judges it: a float64
    replay is the centre, and legal ways to round at the port's dtype are the noise.
    """

    graph: Graph
    ops: Any
    dtype: np.dtype
    dumped: Mapping[int, np.ndarray]
    read: Read
    centres: dict[int | None, Evaluator] = field(default_factory=dict)
    rounding: dict[int | None, list[Evaluator]] = field(default_factory=dict)
    usual: dict[tuple[int, int | None], float] = field(default_factory=dict)
    count: int = 0

    def centre(self, rows: int | None) -> Evaluator:
        if rows not in self.centres:
            namespace = exact(self.ops, self.dtype)
            self.centres[rows] = self.evaluator(namespace, FLOAT64, rows)
        return self.centres[rows]

    def ways(self, rows: int | None) -> list[Evaluator]:
        if rows not in self.rounding:
            self.rounding[rows] = [
                self.evaluator(namespace, dtype, rows) for namespace, dtype in ways(self.dtype)
            ]
        return self.rounding[rows]

    def evaluator(self, ops: Any, dtype: np.dtype, rows: int | None) -> Evaluator:
        return Evaluator(self.graph, ops, dtype, self.dumped, self.read, rows)

    def port(self, target: int, rows: int | None = None) -> np.ndarray:
        return self.centre(rows).cut(self.dumped[target], self.graph.token_axes[target])

    def judge(self, target: int, calls: Rewritten | None = None, rows: int | None = None) -> Judgement:
        """Judge a value as `diff` does, with some calls rewritten."""
        self.count += 1 + len(self.ways(rows))
        with np.errstate(all="ignore"):
            centre = self.centre(rows).target(target, calls)
            spread = [way.target(target, calls) for way in self.ways(rows)]
            port = self.port(target, rows)
            if centre.shape != port.shape:
                return Judgement(FAR, 0.0, FAR, FAR, FAR, False, None)
            return judge(port, centre, spread, self.dtype)

    def fit(
        self, target: int, calls: Rewritten | None, rows: int | None = None, skip: int = 0
    ) -> Fit:
        """Return roughly how far the port is from a hypothesis: the centre alone is computed.

        The first `skip` tokens are left out.
        """
        self.count += 1
        with np.errstate(all="ignore"):
            centre = self.centre(rows).target(target, calls)
            port = self.port(target, rows)
            if centre.shape != port.shape:
                return Fit(FAR, FAR)
            axis = self.graph.token_axes[target][0]
            wrong = np.moveaxis(centre, axis, 0)[skip:].astype(np.float64)
            found = np.moveaxis(port, axis, 0)[skip:].astype(np.float64)
            allowed = self.relative_noise(target, rows) * rms(wrong)
            gain = np.vdot(wrong, found) / np.vdot(wrong, wrong)
            return Fit(ratio(found - wrong, allowed), ratio(found - gain * wrong, allowed))

    def relative_noise(self, target: int, rows: int | None) -> float:
        """Return the noise of the right computation, relative to what it gives."""
        key = target, rows
        if key not in self.usual:
            centre = self.centre(rows).target(target)
            errors = [np.nan_to_num(difference(way.target(target), centre)) for way in self.ways(rows)]
            noise = row_noise(errors, centre, self.dtype)
            self.usual[key] = rms(noise) / (rms(centre) or 1.0)
        return self.usual[key]

    def effect(self, target: int, calls: Rewritten, rows: int | None = None, skip: int = 0) -> float:
        """Return how far a hypothesis moves a value, over the noise."""
        self.count += 1
        with np.errstate(all="ignore"):
            right = self.centre(rows).target(target)
            wrong = self.centre(rows).target(target, calls)
            if wrong.shape != right.shape:
                return FAR
            axis = self.graph.token_axes[target][0]
            moved = np.moveaxis(wrong - right, axis, 0)[skip:]
            return ratio(moved, self.relative_noise(target, rows) * rms(right))

    @property
    def limit(self) -> float:
        return LIMITS[self.dtype.name].whole


def ratio(error: np.ndarray, allowed: float) -> float:
    """Return the size of an error over what is allowed; what is not a number is far."""
    found = rms(error) / allowed if allowed else (FAR if np.any(error) else 0.0)
    return float(found) if np.isfinite(found) else FAR
