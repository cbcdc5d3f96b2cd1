"""The records of a calibration as Markdown."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Record = dict[str, Any]
SHOWN = 20  # exceptions that are listed one by one


def tables(clean: list[Record], faulty: list[Record], *, by_port: bool) -> str:
    """Return the counts, every exception, and the two tables."""
    key = ("dtype", "port", "op") if by_port else ("dtype", "op")
    parts = [summary(clean, faulty), clean_table(clean, key), fault_table(faulty)]
    return "\n\n".join(parts)


def summary(clean: list[Record], faulty: list[Record]) -> str:
    alarms = [one for one in clean if one["alarm"]]
    wrong = [one for one in faulty if one["wrongly blamed"]]
    missed = sum(not one["found"] for one in faulty)
    seeds = {one["seed"] for one in clean}
    lines = [
        f"{len(seeds)} seeds, {min(seeds)} to {max(seeds)}.",
        f"Right ports: {len(clean)} taps, {len(alarms)} false alarms.",
        f"Planted faults with an effect: {len(faulty)}, missed {missed}; "
        f"with a tap wrongly blamed: {len(wrong)}.",
    ]
    return "\n".join(lines + [f"- {one}" for one in (*alarms[:SHOWN], *wrong[:SHOWN])])


def clean_table(records: list[Record], key: tuple[str, ...]) -> str:
    """Ratios of right ports: of taps of many rows, of one, and the worst of all."""
    heads = [*key, "taps", "ratio: median, p99, max", "one row: p99, max", "row: max"]
    heads += ["number: max", "of the limit", "false alarms"]
    groups = sorted(grouped(records, *key).items())
    return table(heads, ([*names, *clean_cells(some)] for names, some in groups))


def clean_cells(records: list[Record]) -> list[Any]:
    many = figures([one["ratio"] for one in records if not one["few"]], 50, 99, 100)
    few = figures([one["ratio"] for one in records if one["few"]], 99, 100)
    row, cell, share = (max(one[name] for one in records) for name in ("row", "cell", "share"))
    alarms = sum(one["alarm"] for one in records)
    return [len(records), many, few, f"{row:.2f}", f"{cell:.1f}", f"{100 * share:.0f} %", alarms]


def fault_table(records: list[Record]) -> str:
    """How many of each fault were found at the right tap, and the median ratio there."""
    dtypes = dict.fromkeys(one["dtype"] for one in records)
    groups = grouped(records, "fault", "dtype")
    names = dict.fromkeys(one["fault"] for one in records)
    rows = ([name, *(fault_cell(groups.get((name, one), [])) for one in dtypes)] for name in names)
    return table(["fault", *dtypes], rows)


def fault_cell(records: list[Record]) -> str:
    if not records:
        return "no effect"
    found = sum(one["found"] for one in records)
    ratio = np.median([one["ratio"] for one in records])
    return f"{found} of {len(records)} ({ratio:.2g})"


def grouped(records: list[Record], *names: str) -> dict[tuple[str, ...], list[Record]]:
    groups: dict[tuple[str, ...], list[Record]] = {}
    for one in records:
        groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return groups


def figures(values: list[float], *percents: int) -> str:
    return ", ".join(f"{np.percentile(values, p):.2f}" for p in percents) if values else "-"


def table(heads: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
