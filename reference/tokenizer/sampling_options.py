"""The settings of a sampler, checked once for every backend."""

from dataclasses import dataclass

from lockstep.reference.checkpoint.errors import InputError

COLDEST, HOTTEST = 1e-6, 100.0


@dataclass(frozen=True)
class SamplingOptions:
    """Temperature, then top-k, then top-p, then min-p: the order in which they are applied.

    `temperature` 0 is greedy, and the cuts then change nothing. `top_k` 0 keeps all tokens, more
    than there are too. `top_p` 1 keeps all mass, `min_p` 0 every token.
    Raises: InputError that names the option, what it is and what it may be.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        hot = self.temperature == 0 or COLDEST <= self.temperature <= HOTTEST
        self.demand("temperature", hot, f"0, or from {COLDEST} to {HOTTEST:g}")
        self.demand("top_k", self.top_k >= 0, "0 or more")
        self.demand("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        self.demand("min_p", 0 <= self.min_p <= 1, "from 0 to 1")

    def demand(self, name: str, holds: bool, what: str) -> None:
        if not holds:  # a NaN holds nowhere
            raise InputError("sampling", f"{name}={getattr(self, name)}, but should be {what}")
