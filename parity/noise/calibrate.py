"""Measure how often a check is wrong: false alarms on right ports, and small faults missed.

    python -m lockstep.parity.noise.calibrate --seeds 20 --first-seed 0 --json FILE

Every seed draws a tiny checkpoint, a prompt and where it begins. The tables are Markdown.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.noise.random_checkpoint import BITS, random_config, write_checkpoint

DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("mlx", "cpu")
LENGTHS = (1, 2, 7, 16, 33, 64, 120, 200)
STARTS = (0, 0, 0, 17, 1000, 6000)
DECODE = 2
FOUND, MISPLACED, MISSED = "found", "elsewhere", "missed"


class Draw:
    """One seed: a checkpoint in a folder, and a prompt for it."""

    def __init__(self, seed: int, folder: Path):
        rng = np.random.default_rng([seed, 1])
        config = random_config(rng)
        self.seed, self.bits = seed, int(rng.choice(BITS)) if rng.random() < 0.4 else None
        stored = str(rng.choice(["float32", "bfloat16", "float16"]))
        self.path = write_checkpoint(folder, config, seed=seed, stored=stored, bits=self.bits)
        length = int(rng.choice(LENGTHS))
        self.tokens = rng.integers(0, config["vocab_size"], (1, length))
        self.positions = np.arange(length)[None] + int(rng.choice(STARTS))

    def models(self, backend: str, dtype: str) -> tuple[Any, Any]:
        from lockstep import fast, reference

        right = reference.load(self.path, dtype=dtype)
        return right, fast.load(self.path, dtype=dtype, backend=backend)

    def runs(self) -> Iterator[tuple[str, str]]:
        """Yield backends and dtypes; MLX on a CPU sums packed half precision in half precision."""
        for backend in BACKENDS:
            for dtype in DTYPES:
                if not (self.bits and backend == "mlx" and dtype != "float32"):
                    yield backend, dtype


def clean(draw: Draw) -> Iterator[dict[str, Any]]:
    """Check right ports: yield a record for each tap."""
    from lockstep.parity.check import check

    for backend, dtype in draw.runs():
        models = draw.models(backend, dtype)
        result = check(*models, draw.tokens, decode=DECODE, positions=draw.positions)
        for tap in result.taps:
            measures = {key: getattr(tap, key) for key in ("ratio", "row_ratio", "cell_ratio")}
            few = int(np.prod(tap.shape[:-1])) == 1
            yield {"seed": draw.seed, "backend": backend, "dtype": dtype, "op": tap.op, "few": few,
                   "tap": tap.name, "alarm": tap.status == "diverged", **measures}  # fmt: skip


def faulty(draw: Draw) -> Iterator[dict[str, Any]]:
    """Plant each small fault in the cpu backend: yield a record for each that has an effect."""
    from lockstep.parity.noise.small_faults import FAULTS

    for dtype in DTYPES:
        reference, port = draw.models("cpu", dtype)
        right = traced(port, draw)
        for number, name in enumerate(FAULTS):
            _, port = draw.models("cpu", dtype)
            place = FAULTS[name](port, np.random.default_rng([draw.seed, number]))
            wrong = traced(port, draw) if place else right
            if all(np.array_equal(wrong[tap], right[tap]) for tap in right):
                continue
            outcome, ratio, others = judged(reference, port, draw, place)
            yield {"seed": draw.seed, "dtype": dtype, "fault": name, "outcome": outcome,
                   "ratio": ratio, "others": others}  # fmt: skip


def traced(port: Any, draw: Draw) -> dict[str, np.ndarray]:
    taps: dict[str, np.ndarray] = {}
    port.forward(draw.tokens, positions=draw.positions, trace=taps.__setitem__)
    return taps


def judged(reference: Any, port: Any, draw: Draw, place: str) -> tuple[str, float, int]:
    """Return the outcome, the ratio at the right tap, and how many other kinds of tap diverged."""
    from lockstep.parity.check import check

    result = check(reference, port, draw.tokens, positions=draw.positions)
    first = result.first_divergence
    outcome = MISSED if first is None else FOUND if first.name == place else MISPLACED
    ratio = next(tap.ratio or 0.0 for tap in result.taps if tap.name == place)
    kinds = {tap.op for tap in result.taps if tap.status == "diverged"}
    here = {tap.op for tap in result.taps if tap.name == place}
    return outcome, ratio, len(kinds - here)


def clean_table(records: list[dict[str, Any]]) -> str:
    """Median, 99th percentile and largest of each ratio, by dtype, backend and operation."""
    lines = ["| dtype | backend | operation | taps | ratio: median, p99, max | of one row: p99, max "
             "| in a row: max | in a number: max | false alarms |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    keys = sorted({(one["dtype"], one["backend"], one["op"]) for one in records})
    for key in keys:
        some = [one for one in records if (one["dtype"], one["backend"], one["op"]) == key]
        many = figures([one["ratio"] for one in some if not one["few"]], 50, 99, 100)
        few = figures([one["ratio"] for one in some if one["few"]], 99, 100)
        row, cell = (max(one[name] for one in some) for name in ("row_ratio", "cell_ratio"))
        alarms = sum(one["alarm"] for one in some)
        place = " | ".join(key)
        lines.append(f"| {place} | {len(some)} | {many} | {few} | {row:.2f} | {cell:.1f} | {alarms} |")
    return "\n".join(lines)


def figures(values: list[float], *percents: int) -> str:
    return ", ".join(f"{np.percentile(values, p):.2f}" for p in percents) if values else "-"


def fault_table(records: list[dict[str, Any]]) -> str:
    """How many of each fault were found at the right tap, by dtype, of those with an effect."""
    lines = [f"| fault | {' | '.join(DTYPES)} |", "|---|---|---|---|"]
    for name in dict.fromkeys(one["fault"] for one in records):
        cells = []
        for dtype in DTYPES:
            some = [one for one in records if (one["fault"], one["dtype"]) == (name, dtype)]
            found = sum(one["outcome"] == FOUND for one in some)
            ratios = figures([one["ratio"] for one in some], 50)
            cells.append(f"{found} of {len(some)}, ratio {ratios}" if some else "no effect")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def calibrate(seeds: range) -> dict[str, list[dict[str, Any]]]:
    """Measure every seed, and say on stderr how far it is."""
    records: dict[str, list[dict[str, Any]]] = {"clean": [], "faulty": []}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            draw = Draw(seed, Path(folder))
            records["clean"] += clean(draw)
            records["faulty"] += faulty(draw)
        print(f"seed {seed} of {seeds.start}..{seeds.stop - 1}", file=sys.stderr)
    return records


def summary(records: dict[str, list[dict[str, Any]]]) -> str:
    alarms = [one for one in records["clean"] if one["alarm"]]
    misplaced = [one for one in records["faulty"] if one["outcome"] == MISPLACED]
    others = sum(bool(one["others"]) for one in records["faulty"])
    return "\n".join(
        [
            f"{len(alarms)} false alarms in {len(records['clean'])} taps of right ports",
            *(f"  false alarm: {one}" for one in alarms[:20]),
            f"{len(misplaced)} of {len(records['faulty'])} planted faults first seen elsewhere",
            *(f"  elsewhere: {one}" for one in misplaced[:20]),
            f"{others} of them also with a divergence at another operation",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="calibrate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every record")
    options = parser.parse_args()
    first = options.first_seed
    records = calibrate(range(first, first + options.seeds))
    print(summary(records), clean_table(records["clean"]), fault_table(records["faulty"]), sep="\n\n")
    if options.json is not None:
        options.json.write_text(json.dumps(records), encoding="utf-8")


if __name__ == "__main__":
    main()
