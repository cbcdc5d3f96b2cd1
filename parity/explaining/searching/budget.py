"""How much a search may compute, and what of it is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lockstep.parity.explaining.searching.trial import Trial


@dataclass
class Budget:
    """The computations that a search may make, from where it began."""

    trial: Trial
    limit: int
    begun: int = 0

    @property
    def used(self) -> int:
        return self.trial.count - self.begun

    @property
    def spent(self) -> bool:
        return self.used > self.limit

    def begin(self) -> None:
        self.begun = self.trial.count

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count what is computed here: it has an end, or a limit of its own."""
        used = self.used
        try:
            yield
        finally:
            self.begun = self.trial.count - used

    @contextmanager
    def of(self, limit: int) -> Iterator[None]:
        """Let the search have so much here."""
        usual, self.limit = self.limit, limit
        try:
            yield
        finally:
            self.limit = usual
