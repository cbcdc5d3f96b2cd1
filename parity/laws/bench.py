"""Runs a port on prompts of its own choice, and measures how far two answers lie apart."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.dumps.dtype import stored_and_shown
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.laws.finding import BROKEN, PASS, Finding
from lockstep.parity.laws.port import Port
from lockstep.reference.checkpoint.errors import InputError

# How many roundings of its dtype two right orders of computing may put between two rows of logits,
# relative to the row's standard deviation. Measured: docs/parity/laws.md.
ROUNDINGS = {"float64": 8192, "float32": 8192, "float16": 32, "bfloat16": 16}


@dataclass
class Bench:
    """A port, a prompt (L,), its logits (L, V), and what rounding may change.

    `unsteady` is how far the port lies from itself on the same tokens, `seeing` says that later
    tokens were found to matter, `mixed` that the rest of the batch was.
    """

    port: Port
    tokens: np.ndarray
    vocabulary: int
    rng: np.random.Generator
    base: np.ndarray
    dtype: str
    unsteady: float = 0.0
    seeing: bool = False
    mixed: bool = False

    @property
    def allowed(self) -> float:
        """A port that is unsteady has broken one law already; it is not blamed for others."""
        return ROUNDINGS[self.dtype] * EPSILONS[self.dtype] + 4 * self.unsteady

    def run(self, *prompts: np.ndarray, **options: Any) -> np.ndarray:
        """Return the logits (B, L, V) of prompts of one length."""
        return self.port.logits(np.stack(prompts).astype(np.int64), **options)

    def others(self, count: int, *, than: np.ndarray | None = None) -> np.ndarray:
        """Draw tokens, none of which is what `than` has in its place."""
        if than is None or self.vocabulary == 1:
            return self.rng.integers(0, self.vocabulary, count)
        return (than + self.rng.integers(1, self.vocabulary, count)) % self.vocabulary

    def judged(
        self, law: str, did: str, pairs: dict[str, tuple[np.ndarray, np.ndarray]],
        points_to: tuple[str, ...],
    ) -> Finding:  # fmt: skip
        """Hold pairs of logits (L, V) together: what should be alike, and what is right."""
        worst, where = max((apart(*pair), name) for name, pair in pairs.items())
        kept = worst <= self.allowed
        exact = all(same_bits(*pair) for pair in pairs.values())
        said = "the same bits" if exact else ""
        if not kept:
            row = first_beyond(*pairs[where], self.allowed)
            said = f"{where}: from token {row} on" if row is not None else where
        return Finding(
            law, PASS if kept else BROKEN, did, worst, self.allowed, said,
            () if kept else points_to,
        )  # fmt: skip


def open_bench(
    port: Port, *, vocabulary: int | None, length: int, seed: int, dtype: str | None
) -> Bench:
    """Ask the port for its first logits. Raises: InputError if it has none."""
    rng, known = np.random.default_rng(seed), vocabulary or port.vocabulary
    if known is None:
        known = port.logits(np.zeros((1, 1), np.int64)).shape[-1]
    if known < 1:
        raise InputError("--vocab", f"{known}, but should be at least 1")
    tokens = rng.integers(0, known, length)
    base = port.logits(tokens[None])[0]
    shown = dtype or stored_and_shown(base)[1]
    return Bench(port, tokens, known, rng, base, shown if shown in EPSILONS else "float32")


def row_errors(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return how far each row is off, over the standard deviation of the right one: (L,)."""
    found, right = found.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.sqrt(np.mean((found - right) ** 2, axis=-1)) / (np.std(right, axis=-1) + 1e-30)
    same = ((found == right) | ((found != found) & (right != right))).all(axis=-1)
    return np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))


def apart(found: np.ndarray, right: np.ndarray) -> float:
    """Return how far the worst row is off; infinite where the shapes differ."""
    if found.shape != right.shape:
        return float("inf")
    return float(np.max(row_errors(found, right), initial=0.0))


def first_beyond(found: np.ndarray, right: np.ndarray, allowed: float) -> int | None:
    if found.shape != right.shape:
        return None
    return int(np.flatnonzero(~(row_errors(found, right) <= allowed))[0])


def same_bits(found: np.ndarray, right: np.ndarray) -> bool:
    return found.shape == right.shape and found.tobytes() == right.tobytes()
