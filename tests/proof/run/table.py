"""The tables of one run or several: `python -m tests.proof.run.table FILE ... > tables.md`.

What was not run has no row, and neither has what was named in full, each time: they are counted.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.proof.ports import GRANULARITIES
from tests.proof.run.case import KINDS
from tests.proof.run.causes import CAUSES
from tests.proof.run.tally import APART, IN_TIME, RIGHT, Dumped, Row, Run, counts, read, rows, share

SINGLES = ("single", "logits", "own")
PORTS = ("single", "logits")
GOALS = (
    ("alone, from the modules", PORTS, "modules", 99),
    ("alone, from the layers", PORTS, "layers", 97),
    ("alone, from the logits", PORTS, "logits", 85),
    ("in our own graph, from the modules", ("own",), "modules", 99),
    ("in our own graph, from the layers", ("own",), "layers", 97),
    ("in combinations, from the modules", ("combination",), "modules", 98),
    ("in combinations of up to seven, from the layers", ("combination",), "layers", 92),
)
CROWD = 7
CLEAN = 1000  # dumps that should be tried
NOT_RUN = "not run"


class Shares(NamedTuple):
    """A table of shares; how many rows it has, and how many it would have with the full ones."""

    table: str
    shown: int
    every: int


def main() -> None:
    print(report([read(Path(name)) for name in sys.argv[1:]]))


def report(runs: list[Run]) -> str:
    dumps = [one for _, found, _ in runs for one in found]
    every = rows(dumps)
    judged = [row for row in every if row.seen and not row.convention]
    alone = [row for row in judged if row.case.kind in SINGLES]
    shares = {
        "dtype": by(judged, lambda row: row.case.dtype, "dtype"),
        "architecture": by(judged, lambda row: row.case.build, "build"),
        "size of the combination": by_size(judged),
        "fault": by(alone, fault, "bug alone"),
    }
    sections = {
        "Against the goals": goals(judged, dumps),
        **{f"By {what}": found.table for what, found in shares.items()},
        "Time and memory": costs(dumps),
        "Below rounding, and conventions": apart(every),
        "Misses": misses(judged, dumps),
    }
    shown = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([left_out(shares), about(runs), *shown])


def left_out(shares: dict[str, Shares]) -> str:
    """Say how many rows are not shown, as all was named in them."""
    counted = [
        f"{found.every - found.shown} of {found.every} by {what}"
        for what, found in shares.items()
        if found.every
    ]
    return (
        "A share is of bugs that show, true ties apart; `none` stands where all are such ties.\n"
        "**Full rows are left out**, those of which each share is 100 %:\n"
        f"{', '.join(counted) or 'none'}. What was not run has no row either."
    )


def table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table, or nothing for no lines."""
    rule, lines = ["---"] * len(head), [*lines]
    every = (head, rule, *lines) if lines else ()
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in every)


def about(runs: list[Run]) -> str:
    """Say what was run, when, on what, and for how long."""
    head = ["kinds", "dumps of", "seeds", "minutes allowed", "cases", "dumps", "minutes", "limit"]
    lines = []
    for header, dumps, seconds in runs:
        asked, cases = header["asked"], {one.case.key for one in dumps}
        kinds = "all" if len(asked["kinds"]) == len(KINDS) else ", ".join(asked["kinds"])
        fine, seeds = ", ".join(asked["granularities"]), ", ".join(map(str, asked["seeds"]))
        allowed = header["minutes"] or "all"
        clock = " of a processor" if header.get("clock") == "processor" else ""  # else of a clock
        took = [f"{seconds / 60:.0f}", f"{header['limit']} s{clock}"]
        lines.append([kinds, fine, seeds, allowed, len(cases), len(dumps), *took])
    about = runs[0][0]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    processes = f"{about['workers']} process{'es' * (about['workers'] != 1)}"
    where = f"{about['date']}; {about['machine']}, {processes} of one thread at a time"
    return f"Run on {where}; {versions}.\n\n{table(head, lines)}"


def goals(judged: list[Row], dumps: list[Dumped]) -> str:
    lines = []
    for name, kinds, granularity, goal in GOALS:
        found = [row for row in judged if row.case.kind in kinds and row.granularity == granularity]
        found = [row for row in found if granularity == "modules" or len(row.case.bugs) <= CROWD]
        if not counts(found)[1]:
            continue
        lines.append([f"named, {name}", f"{goal} %", share(found), reached(counts(found), goal)])
        lines.append([f"in {IN_TIME} s of a processor", "", share(found, IN_TIME), ""])
        tied = sum(row.status in APART for row in found)
        lines.append(["apart: in a set of equals, or as its equal", "", tied, ""])
    named = [row for row in judged if row.case.kind != "without"]
    lost = sum(row.status == "missed" for row in named)
    lines.append(
        [
            "nothing said of a bug that shows",
            0,
            f"{lost} of {len(named)}",
            yes(not lost) if named else NOT_RUN,
        ]
    )
    with_bugs = [one for one in dumps if one.case.kind in (*SINGLES, "combination")]
    lines.append(nothing("dumps with a wrong name", with_bugs, wrong))
    rest = [row for row in judged if row.case.kind == "without"]
    unfair = sum(row.status not in ("unknown", "equal", "tie") for row in rest)
    lines.append(none_of("its class unknown: neither `unknown` nor an equal", unfair, len(rest)))
    without = [one for one in dumps if one.case.kind == "without"]
    lines.append(nothing("its class unknown: an invention", without, wrong))
    lines.append(nothing("calls that failed", dumps, failed))
    clean = [one for one in of_kind(dumps, "clean") if "seconds" in one.outcome]
    lines.append(["clean dumps tried", CLEAN, len(clean), yes(len(clean) >= CLEAN)])
    lines.append(nothing("alarms on clean dumps", clean, alarm))
    lines.append(nothing("alarms on benign changes", of_kind(dumps, "benign"), alarm))
    return table(["", "goal", "found", "reached"], [one for one in lines if one[-1] != NOT_RUN])


def reached(found: tuple[int, int], goal: int) -> str:
    right, asked = found
    return yes(100 * right >= goal * asked)


def yes(good: bool) -> str:
    return "yes" if good else "**no**"


def of_kind(dumps: list[Dumped], kind: str) -> list[Dumped]:
    return [one for one in dumps if one.case.kind == kind]


def wrong(one: Dumped) -> bool:
    return bool(one.outcome["wrong"]) and not failed(one)


def failed(one: Dumped) -> bool:
    return one.outcome["verdict"] == "error"


def alarm(one: Dumped) -> bool:
    return one.outcome["verdict"] in ("faults", "unknown")


def nothing(what: str, dumps: list[Dumped], bad: Callable[[Dumped], bool]) -> list[Any]:
    return none_of(what, sum(map(bad, dumps)), len(dumps))


def none_of(what: str, count: int, asked: int) -> list[Any]:
    return [what, 0, f"{count} of {asked}", yes(not count) if asked else NOT_RUN]


def by(judged: list[Row], key: Callable[[Row], str], name: str) -> Shares:
    """Return the share of named bugs at each granularity, for each value of something."""
    groups: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in judged:
        if row.case.kind != "without":
            groups[key(row)][row.granularity].append(row)
    dumped = [fine for fine in GRANULARITIES if any(fine in found for found in groups.values())]
    lines = [
        [one, *(share(found[fine]) if fine in found else "" for fine in dumped)]
        for one, found in sorted(groups.items())
        if not full(found.values())
    ]
    return Shares(table([name, *dumped], lines), len(lines), len(groups))


def full(found: Iterable[list[Row]]) -> bool:
    """Tell if every bug was named; where all are true ties there is no such figure."""
    counted = [counts(group) for group in found]
    return all(right == asked > 0 for right, asked in counted)


def fault(row: Row) -> str:
    return f"`{row.id}`" + " (own graph)" * (row.case.kind == "own")


def by_size(judged: list[Row]) -> Shares:
    combined = [row for row in judged if row.case.kind == "combination"]
    return by(combined, lambda row: f"{len(row.case.bugs):2}", "bugs at once")


def costs(dumps: list[Dumped]) -> str:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for one in dumps:
        groups[one.case.kind, one.granularity].append(one.outcome)
    lines = []
    for (kind, granularity), found in sorted(groups.items()):
        over = sum(one["verdict"] == "too long" for one in found)
        figures = [
            f"{figure([one[name] for one in found if name in one] or [0]):.2f}"
            for name in ("seconds", "megabytes")
            for figure in (median, max)
        ]
        lines.append([kind, granularity, len(found), over, *figures])
    head = ["kind", "dump", "calls", "too long", "median s", "worst s", "median MB", "worst MB"]
    return table(head, lines)


def apart(every: list[Row]) -> str:
    """Say what became of bugs that no value shows, and of changes that are no bugs."""
    lines = []
    for title, found in (
        ("below rounding", [row for row in every if not row.seen and not row.convention]),
        ("conventions", [row for row in every if row.convention]),
    ):
        found = [row for row in found if row.case.kind != "without"]
        for dtype in sorted({row.case.dtype for row in found}):
            counted = Counter(row.status for row in found if row.case.dtype == dtype)
            lines.append([title, dtype, sum(counted.values()), told(counted)])
    return table(["", "dtype", "cases", "said"], lines)


def told(counted: Counter[str]) -> str:
    return ", ".join(f"{status} {count}" for status, count in counted.most_common())


def misses(judged: list[Row], dumps: list[Dumped]) -> str:
    """List every bug that was not named, then every name that was wrong, then every alarm."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in judged:
        fair = (*RIGHT, *APART, *(("unknown",) if row.case.kind == "without" else ()))
        if row.status not in fair:
            groups[row.bug, row.status].append(place(row.case, row.granularity))
    lines = [
        [f"`{bug}`", status, len(where), shortened(where), CAUSES.get(bug, "")]
        for (bug, status), where in sorted(groups.items())
    ]
    names: dict[str, list[str]] = defaultdict(list)
    for one in dumps:
        for id in one.outcome["wrong"]:
            what = ", ".join(one.case.bugs) or one.case.kind
            names[id].append(f"{what}: {place(one.case, one.granularity)}")
    given = [[f"`{id}`", len(where), shortened(where)] for id, where in sorted(names.items())]
    alarms = [
        [place(one.case, one.granularity), one.outcome["verdict"], said(one)]
        for one in dumps
        if one.case.kind in ("clean", "benign") and alarm(one)
    ]
    parts = {
        "Bugs that were not named": table(["bug", "status", "times", "where", "cause"], lines),
        "Wrong names": table(["name", "times", "for"], given),
        "Alarms": table(["where", "verdict", "said"], alarms),
    }
    return "\n\n".join(
        f"{what}:\n\n{one}" if one else f"{what}: none." for what, one in parts.items()
    )


def said(one: Dumped) -> str:
    found = [*map(" or ".join, one.outcome.get("sets", [])), *one.outcome.get("unexplained", [])]
    return "; ".join([*one.case.bugs, *found])


def place(case: Any, granularity: str) -> str:
    several = f" of {len(case.bugs)}" if len(case.bugs) > 1 else ""
    return f"{case.build} {case.dtype} {granularity}{several}"


def shortened(where: list[str], most: int = 4) -> str:
    found = list(dict.fromkeys(where))
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


if __name__ == "__main__":
    main()
