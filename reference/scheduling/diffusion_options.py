"""The settings of WeDLM's decoder, and how its makers' code and a port of it differ: no arithmetic.

Sources: Tencent's engine (wedlm_decoder, sampler), and a port of it to MLX, as described.
"""

import math
from dataclasses import dataclass
from typing import Literal

from lockstep.reference.checkpoint.errors import InputError, show

MASK_ID = 151_665  # where a config of WeDLM names none, its makers' engine takes this one
WIDEST = 1024
Penalty = Literal["first-mask", "window", "tempered"]


@dataclass(frozen=True)
class Variant:
    """One engine's way. `threshold` and `position_penalty` are what it has by itself.

    `extends`: what is committed goes through the model once more, in a pass of its own; else the
    keys and values of the pass that it was an input of are kept. `stops`: whether stop ids end it.
    `floor` is added to a probability before its logarithm. `chunk` is how many tokens of the prompt
    go through the model at a time. `semantics` are the sampler's order and rules.
    """

    name: str
    threshold: float
    position_penalty: float
    penalty: Penalty
    extends: bool
    stops: bool
    floor: float
    chunk: int | None
    semantics: str


VARIANTS = {
    one.name: one
    for one in (
        Variant(
            "tencent",
            threshold=0.4,
            position_penalty=0.02,
            penalty="first-mask",
            extends=False,
            stops=True,
            floor=0.0,
            chunk=None,
            semantics="wedlm",
        ),
        Variant(
            "mlx-port",
            threshold=0.3,
            position_penalty=0.01,
            penalty="window",
            extends=True,
            stops=False,
            floor=1e-10,
            chunk=512,
            semantics="lockstep",
        ),
    )
}
PENALTIES = ("first-mask", "window", "tempered")


@dataclass(frozen=True)
class DiffusionOptions:
    """How masks are filled in. `threshold` None fills one mask a step, the surest.

    `penalty` is where the distance of the position penalty begins: at the "first-mask" that is
    left, or at the first slot of the "window" that was run; "tempered" is the former, with logits
    divided by `temperature` before the entropy is taken (a fork's way). `variant` says the rest.
    Raises: InputError that names the option, what it is and what it may be.
    """

    mask_id: int
    variant: Variant
    window: int = 16
    threshold: float | None = None
    position_penalty: float = 0.0
    penalty: Penalty = "first-mask"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        self.demand("window", 1 <= self.window <= WIDEST, f"from 1 to {WIDEST}")
        fits = self.threshold is None or 0 <= self.threshold < math.inf
        self.demand("threshold", fits, "0 or more, or none")
        self.demand("position_penalty", 0 <= self.position_penalty < math.inf, "0 or more")
        self.demand("penalty", self.penalty in PENALTIES, f"one of {', '.join(PENALTIES)}")
        fits = 0 < self.temperature < math.inf
        self.demand("temperature", fits, "above 0, which the tempered penalty divides by")

    @property
    def heat(self) -> float:
        """What logits are divided by before the entropy is taken."""
        return self.temperature if self.penalty == "tempered" else 1.0

    def demand(self, name: str, holds: bool, what: str) -> None:
        if not holds:  # a NaN holds nowhere
            raise InputError("wedlm", f"{name}={getattr(self, name)}, but should be {what}")


def variant_named(name: str) -> Variant:
    """Return one engine's way. Raises: InputError if there is no such engine."""
    if name not in VARIANTS:
        what = f"variant={show(name)}, but should be one of {', '.join(VARIANTS)}"
        raise InputError("wedlm", what)
    return VARIANTS[name]
