"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstep.parity.reports.reported import Reported

if TYPE_CHECKING:
    from lockstep.parity.judging.histogram import Histogram

PARITY, DIVERGED = "parity", "diverged"
WRONG = ("diverged", "differs")  # of the states of a tap
# What of a tap is in the JSON, in this order.
SHOWN = ("name", "shape", "max_abs", "rms_rel", "cosine", "gain", "own_error", "inherited_error",
         "noise", "ratio", "status", "op", "place", "histogram")  # fmt: skip


@dataclass(frozen=True)
class Tap:
    """One compared activation. Errors and noise are relative to the root mean square of the truth.

    `status` is "ok", "diverged" (its own error is beyond the noise), "inherited" (right, given
    what it was fed), "differs" (judged without an oracle) or "not judged". What is not known is
    None; `place` says in words what is wrong, or why nothing was judged.
    """

    name: str
    op: str | None
    shape: tuple[int, ...]
    status: str
    max_abs: float | None = None
    rms_rel: float | None = None
    cosine: float | None = None
    gain: float | None = None
    own_error: float | None = None
    inherited_error: float | None = None
    noise: float | None = None
    ratio: float | None = None
    row_ratio: float | None = None
    cell_ratio: float | None = None
    place: str | None = None
    histogram: Histogram | None = None

    @property
    def is_wrong(self) -> bool:
        """Say whether it is wrong in itself, and not for what it was given."""
        return self.status in WRONG

    def to_json(self) -> dict[str, Any]:
        return {name: tidy(getattr(self, name)) for name in SHOWN}


@dataclass
class Result(Reported):
    """The verdict on two runs, and every tap that was compared, in the order of computation."""

    left: str
    right: str
    taps: list[Tap] = field(default_factory=list, repr=False)
    unmatched: list[str] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wiring: list[str] = field(default_factory=list)  # what is fed with another value, once each
    command: str = "diff"
    suspects: list[str] = field(default_factory=list)  # by sketches: what to write whole next

    def __str__(self) -> str:
        """Return what the command line prints."""
        from lockstep.parity.reports.terminal import report

        return report(self)  # pyright: ignore[reportArgumentType]  (it is reached by a link)

    @property
    def first_divergence(self) -> Tap | None:
        """The first tap that is wrong in itself."""
        return next((tap for tap in self.taps if tap.is_wrong), None)

    @property
    def verdict(self) -> str:
        return PARITY if self.first_divergence is None else DIVERGED

    @property
    def compared(self) -> int:
        return sum(tap.status != "not judged" for tap in self.taps)

    def to_json(self) -> dict[str, Any]:
        first = self.first_divergence
        return {
            "verdict": self.verdict,
            "first_divergence": first and first.name,
            "compared": self.compared,
            "unmatched": self.unmatched,
            "conventions": self.wiring + self.notes + self.conventions,
            "taps": [tap.to_json() for tap in self.taps],
            "command": self.command,
            "left": self.left,
            "right": self.right,
            **({"suspects": self.suspects} if self.suspects else {}),
        }


def tidy(value: Any) -> Any:
    """Return a value that JSON has: what is not finite becomes its name."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value
