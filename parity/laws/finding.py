"""What came of one law."""

from dataclasses import dataclass
from typing import Any

PASS, BROKEN, NOT_TRIED = "PASS", "BROKEN", "NOT TRIED"


@dataclass(frozen=True)
class Finding:
    """`figure` is what was measured and `allowed` what it may be, both over the standard deviation
    of a row of logits; None where a law counts nothing."""

    law: str
    status: str
    did: str
    figure: float | None = None
    allowed: float | None = None
    said: str = ""
    points_to: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        figure = self.figure if self.figure is None or self.figure < float("inf") else None
        return vars(self) | {"figure": figure, "points_to": list(self.points_to)}


def not_tried(law: str, why: str) -> Finding:
    return Finding(law, NOT_TRIED, "", said=why)
