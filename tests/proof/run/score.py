"""What `explain` said of a case, held against what is in it.

Each bug gets one status:

- `named`: its id, alone;
- `tie`: its id in a set of at most four that nothing is said to tell apart; `false tie` if some
  member of the set gives other numbers in the port, and it is no true tie of another bug;
- `equal`: the id of another bug that gives the same numbers in this port, where this one shows;
  or several, of one whose class is unknown, which do so `together`;
- `unknown`: something is said to be wrong there, without a name;
- `wrong`: names were given that are not in the port;
- `missed`: nothing at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST = 4
Alike = Callable[[str, str], bool]  # is an id the same as a bug in this port?


@dataclass
class Scored:
    status: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def score(bugs: dict[str, str], diagnosis: Any, alike: Alike) -> Scored:
    """Return the status of each bug; `bugs` are their ids by their names."""
    sets = [{one.id, *one.also_fits} for one in diagnosis.faults]
    said = {line.partition(":")[0] for line in diagnosis.conventions}
    result, used = Scored(), set()
    for bug, id in bugs.items():
        places = [place for place, ids in enumerate(sets) if id in ids]
        used.update(places)
        if places:
            result.status[bug] = named_in(min((sets[p] for p in places), key=len), bug, id, alike)
        elif id in said:
            result.status[bug] = "named"
    for bug in taken_by_others(bugs, sets, result.status):
        del result.status[bug]
    for place in range(len(sets)):
        if place not in used:
            equal = [
                bug for bug in bugs
                if bug not in result.status and alike(bug, diagnosis.faults[place].id)
            ]  # fmt: skip
            result.status |= dict.fromkeys(equal[:1], "equal")
            result.wrong += [diagnosis.faults[place].id] * (not equal)
    rest = "wrong" if result.wrong else "unknown" if diagnosis.unexplained else "missed"
    for bug in bugs:
        result.status.setdefault(bug, rest)
    return result


def count_shared_names(
    scored: Scored, diagnosis: Any, alike: Alike, first: Callable[[str], str | None]
) -> None:
    """Mark bugs that were missed as equal to one that is named where they show `first`.

    A name that stands for another bug elsewhere says this one too, if it is the same there.
    """
    for bug in [one for one, status in scored.status.items() if status == "missed"]:
        tap = first(bug)
        if any(tap in one.taps and alike(bug, one.id) for one in diagnosis.faults):
            scored.status[bug] = "equal"


def taken_by_others(
    bugs: dict[str, str], sets: list[set[str]], status: dict[str, str]
) -> list[str]:
    """Return the bugs whose id stands only in true ties of others: those say nothing of them."""
    ties = [bugs[bug] for bug, one in status.items() if one == "tie"]
    return [
        bug for bug, one in status.items()
        if one == "false tie" and all(not ids.isdisjoint(ties) for ids in sets if bugs[bug] in ids)
    ]  # fmt: skip


def named_in(ids: set[str], bug: str, id: str, alike: Alike) -> str:
    if ids == {id}:
        return "named"
    true = len(ids) <= MOST and all(alike(bug, other) for other in ids - {id})
    return "tie" if true else "false tie"
