"""The settings of a sampler, checked once for every backend."""

import math
from dataclasses import dataclass, fields

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.sampling_semantics import Semantics, semantics_named

COLDEST, HOTTEST = 1e-6, 100.0
HARDEST = 100.0  # the strongest penalty
HEAVIEST = 1e9  # the largest bias: divided by the coldest temperature it still is a number


@dataclass(frozen=True)
class SamplingOptions:
    """What is done to the logits before one token is drawn; the defaults do nothing.

    `temperature` 0 is greedy. `top_k` 0 keeps all tokens, more than there are too. `top_p` and
    `typical_p` 1 keep all mass, `min_p` 0 every token. `penalty_window` is how many of the last
    tokens, the prompt's among them, the penalties look at; None is the engine's own habit.
    `logit_bias` holds pairs of a token id and what is added to its logit, at most 1e9 either way;
    -inf bans it.
    `semantics` names the engine whose order and rules are followed: see `sampling_semantics`.
    Raises: InputError that names the option, what it is and what it may be.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    semantics: str = "lockstep"

    def __post_init__(self) -> None:
        self.demand_engine()
        hot = self.temperature == 0 or COLDEST <= self.temperature <= HOTTEST
        self.demand("temperature", hot, f"0, or from {COLDEST} to {HOTTEST:g}")
        self.demand("top_k", self.top_k >= 0, "0 or more")
        self.demand_share("top_p")
        self.demand("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        self.demand_share("typical_p")
        self.demand_penalties()
        self.demand_bias()

    @property
    def rules(self) -> Semantics:
        """The order and the rules of the engine that is followed."""
        return semantics_named(self.semantics)

    @property
    def heat(self) -> float:
        """What logits are divided by: the temperature, or the engine's coldest; 0 is greedy."""
        return max(self.temperature, self.rules.coldest) if self.temperature else 0.0

    @property
    def looks_back(self) -> bool:
        """Whether a penalty is set, so that earlier tokens matter."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @property
    def window(self) -> int | None:
        """How many of the last tokens the penalties look at; None means all."""
        return self.penalty_window or self.rules.window

    @property
    def is_argmax(self) -> bool:
        """Whether the largest logit as it is wins: nothing is drawn and nothing is changed."""
        changed = self.looks_back or self.logit_bias
        return self.temperature == 0 and not changed and not self.rules.greedy_after_cuts

    def share(self, name: str) -> float:
        """Return `top_p` or `typical_p`, or 1 where the engine reads its 0 as off."""
        value = getattr(self, name)
        return 1.0 if value == 0 and self.rules.zero[name] == "off" else value

    def demand_engine(self) -> None:
        """Refuse an option that the engine does not have, where it is set."""
        for one in fields(self):
            if one.name in self.rules.lacks and getattr(self, one.name) != one.default:
                raise InputError("sampling", f"{one.name} is set, but {self.semantics} has none")

    def demand_share(self, name: str) -> None:
        if name in self.rules.zero:
            self.demand(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        else:
            self.demand(name, 0 < getattr(self, name) <= 1, "above 0 and at most 1")

    def demand_penalties(self) -> None:
        fits = 0 < self.repetition_penalty <= HARDEST
        self.demand("repetition_penalty", fits, f"above 0 and at most {HARDEST:g}")
        for name in ("frequency_penalty", "presence_penalty"):
            fits = -HARDEST <= getattr(self, name) <= HARDEST
            self.demand(name, fits, f"from {-HARDEST:g} to {HARDEST:g}")
        fits = self.penalty_window is None or self.penalty_window >= 1
        self.demand("penalty_window", fits, "1 or more")

    def demand_bias(self) -> None:
        ids = [token for token, _ in self.logit_bias]
        self.demand("logit_bias", len(set(ids)) == len(ids), "one value a token")
        self.demand("logit_bias", min(ids, default=0) >= 0, "of token ids, which are 0 or more")
        fits = all(bias == -math.inf or abs(bias) <= HEAVIEST for _, bias in self.logit_bias)
        limits = f"from {-HEAVIEST:g} to {HEAVIEST:g}, or -inf, which bans the token"
        self.demand("logit_bias", fits, limits)

    def demand(self, name: str, holds: bool, what: str) -> None:
        if not holds:  # a NaN holds nowhere
            raise InputError("sampling", f"{name}={getattr(self, name)}, but should be {what}")
