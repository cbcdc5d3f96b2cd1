"""Bring a dumped tensor into the shape that its tap has here, by moves that lose nothing."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lockstep.parity.dump import Dump
from lockstep.parity.names import tap_named

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Alignment:
    """Where each tap of a dump is found, and what had to be moved to compare it."""

    dump: Dump
    names: Mapping[str, str]  # tap -> dumped name, in the order of the dump
    renamed: int
    moved: Counter[str] = field(default_factory=Counter)

    def read(self, tap: str, shape: Shape) -> np.ndarray:
        """Return the tensor of a tap in `shape`, or as it was dumped if no move leads there."""
        array = self.dump.read(self.names[tap])
        name = move_between(array.shape, shape)
        if name is None:
            return array
        self.moved[name] += name != "none"
        return MOVES[name](array, shape)

    @property
    def plan(self) -> list[str]:
        """Return what was done to make the two sides comparable, a line each."""
        lines = [f"{name} in {count} tensors" for name, count in self.moved.items() if count]
        total = len(self.dump.shapes)
        return [f"{self.renamed} of {total} names mapped to taps"] * bool(self.renamed) + lines


def align(dump: Dump) -> Alignment:
    """Map the names of a dump onto taps; where two names mean one tap, the tap's own name wins."""
    names: dict[str, str] = {}
    for name in dump.shapes:
        tap = tap_named(name)
        if tap not in names or tap == name:
            names[tap] = name
    return Alignment(dump, names, sum(tap != name for tap, name in names.items()))


def move_between(found: Shape, wanted: Shape) -> str | None:
    """Return the name of the first move that leads from one shape to the other, None if none."""
    probe = np.broadcast_to(np.zeros((), bool), found)
    for name, move in MOVES.items():
        try:
            if move(probe, wanted).shape == wanted:
                return name
        except ValueError:
            continue
    return None


def heads_swapped(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, H, D) against (B, H, L, D)."""
    return np.swapaxes(x, -2, -3) if x.ndim > 2 else x


def heads_merged(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, H, D) against (B, L, H*D), token by token."""
    if x.shape[:2] != wanted[:2]:
        raise ValueError("the tokens are not where they should be")
    return x.reshape(wanted)


MOVES: dict[str, Callable[[np.ndarray, Shape], np.ndarray]] = {
    "none": lambda x, wanted: x,
    "batch axis added": lambda x, wanted: x[None],
    "batch axis dropped": lambda x, wanted: x.squeeze(0),
    "heads and tokens swapped": heads_swapped,
    "batch axis added, heads and tokens swapped": lambda x, wanted: heads_swapped(x[None], wanted),
    "heads merged or split": heads_merged,
    "batch axis added, heads merged or split": lambda x, wanted: heads_merged(x[None], wanted),
}
