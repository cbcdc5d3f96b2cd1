"""The results of a run as flat rows, and shares of them."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.faults import catalogue
from tests.proof.run.case import Case

RIGHT, APART = ("named",), ("tie", "equal")
IN_TIME = 60  # seconds of a processor that a call is to take


@dataclass(frozen=True)
class Row:
    """One bug of one dump."""

    case: Case
    granularity: str
    bug: str
    status: str
    seen: bool
    convention: bool
    seconds: float  # of a processor, that the call took

    @property
    def id(self) -> str:
        return self.bug.partition(" (")[0]


@dataclass(frozen=True)
class Dumped:
    """One dump, and what came of it."""

    case: Case
    granularity: str
    outcome: dict[str, Any]


Run = tuple[dict[str, Any], list[Dumped], int]  # header, dumps, seconds


def read(path: Path) -> Run:
    """Return a run's header, its dumps, and how many seconds it took."""
    first, *rest = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    dumps = [
        Dumped(Case.of(line["case"]), outcome["granularity"], outcome)
        for line in rest
        if "case" in line
        for outcome in line["outcomes"]
    ]
    return first, dumps, sum(line.get("seconds", 0) for line in rest)


def rows(dumps: Iterable[Dumped]) -> list[Row]:
    benign = {fault.id for fault in catalogue() if fault.convention}
    return [
        Row(one.case, one.granularity, bug, status, one.outcome["seen"].get(bug, True),
            bug.partition(" (")[0] in benign, one.outcome.get("seconds", math.inf))
        for one in dumps
        for bug, status in one.outcome["status"].items()
    ]  # fmt: skip


def share(found: Iterable[Row], within: float = math.inf) -> str:
    """Say how many of the bugs that can be told apart are named: `97.5 % (39 of 40)`."""
    right, asked = counts(found, within)
    return f"{100 * right / asked:.1f} % ({right} of {asked})" if asked else "none"


def counts(found: Iterable[Row], within: float = math.inf) -> tuple[int, int]:
    """Return how many bugs are named in so many seconds, and of how many; true ties are apart."""
    asked = [row for row in found if row.status not in APART]
    return sum(row.status in RIGHT and row.seconds <= within for row in asked), len(asked)
