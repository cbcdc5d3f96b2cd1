"""Run one case: plant, dump, explain, score."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.faults import catalogue
from tests.proof.run.alike import are_alike
from tests.proof.run.case import Case
from tests.proof.run.fitted import left_out
from tests.proof.run.memory import forget_worst, megabytes
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump
from tests.proof.run.score import Scored, count_shared_names, score
from tests.proof.run.seen import first_seen, is_seen
from tests.proof.run.together import are_one

Outcome = dict[str, Any]


class TooLong(Exception):
    """A call took more of a processor than it may."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong(f"took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of this process, however busy others are
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(case: Case, places: Places, *, limit: int) -> list[Outcome]:
    """Return what came of a case at each granularity. An error of `explain` is an outcome too."""
    taken = dump(case, places)
    seen = {bug: is_seen(case, bug, places) for bug in case.bugs} if case.kind != "benign" else {}
    outcomes = [
        {"granularity": one, "seen": {bug: shows[one] for bug, shows in seen.items()}}
        | explained(case, at(taken, one), one, places, limit)
        for one in case.granularities
    ]
    for one in outcomes:
        hide_together(case, one, places)
    return outcomes


def shows(case: Case, bugs: list[str], places: Places, granularity: str) -> bool:
    return is_seen(case, bugs[0], places, *bugs[1:])[granularity]


def hide_together(case: Case, outcome: Outcome, places: Places) -> None:
    """Mark bugs that were missed as not seen, if all of them together show nothing."""
    shown = (bug for bug, status in outcome["status"].items() if status == "missed")
    missed = [bug for bug in shown if outcome["seen"][bug]]
    if len(missed) > 1 and not shows(case, missed, places, outcome["granularity"]):
        outcome["seen"] |= dict.fromkeys(missed, False)


def explained(
    case: Case, taken: dict[str, np.ndarray], granularity: str, places: Places, limit: int
) -> Outcome:
    ids = {bug: bug.partition(" (")[0] for bug in case.bugs}
    shapes = {name: value.shape for name, value in taken.items()}
    given = Dump(Path("dump"), shapes, taken.__getitem__)
    tokens = places.tokens(case.build, case.seed, case.length, case.rows)[0].tolist()
    out = left_out({*ids.values()}) if case.kind == "without" else set()
    faults = [fault for fault in catalogue() if fault.id not in out]
    before, began = forget_worst(), time.process_time()
    try:
        with limited(limit):
            diagnosis = explain(
                places.model(case.build, case.seed), given, tokens=tokens, faults=faults
            )
    except TooLong:
        return {"verdict": "too long", "status": dict.fromkeys(ids, "too long"), "wrong": []}
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:200]
        return {"verdict": "error", "status": dict.fromkeys(ids, "error"), "wrong": [said]}
    seconds = time.process_time() - began
    peak = megabytes("VmHWM") - before
    if case.kind in ("benign", "clean"):
        scored = Scored(wrong=[one.id for one in diagnosis.faults])
    else:
        alike = partial(are_alike, case, granularity=granularity, places=places)
        scored = score(ids, diagnosis, lambda bug, id: alike(bug, id))
        count_shared_names(scored, diagnosis, alike, partial(first_seen, case, granularity, places))
        if (
            case.kind == "without"
            and scored.wrong
            and are_one(case, diagnosis, granularity, places)
        ):
            scored = Scored(dict.fromkeys(ids, "equal"))
    return {
        "verdict": diagnosis.verdict,
        "status": scored.status,
        "wrong": scored.wrong,
        "sets": [[one.id, *one.also_fits] for one in diagnosis.faults],
        "unexplained": [f"{one.tap}: {one.shape}" for one in diagnosis.unexplained[:2]],
        "seconds": round(seconds, 3),
        "megabytes": round(max(peak, 0.0), 1),
    }
