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

from lockstep.parity.check import check
from lockstep.parity.judging.judge import LIMITS
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.noise.calibration_tables import tables
from lockstep.parity.noise.random_checkpoint import BITS, random_config, write_checkpoint
from lockstep.parity.noise.small_faults import FAULTS, IN_EVERY_LAYER
from lockstep.parity.replaying.oracle import Oracle
from lockstep.reference import model as reference

DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("mlx", "cpu")
LENGTHS = (1, 2, 7, 16, 33, 64, 120, 200)
STARTS = (0, 0, 0, 17, 1000, 6000)
DECODE = 2
Record = dict[str, Any]


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

    def reference(self, dtype: str) -> Any:
        return reference.load(self.path, dtype=dtype)

    def port(self, backend: str, dtype: str) -> Any:
        from lockstep.fast.model import load

        return load(self.path, dtype=dtype, backend=backend)

    def runs(self) -> Iterator[tuple[str, str]]:
        """Yield backends and dtypes; MLX on a CPU sums packed half precision in half precision."""
        for backend in BACKENDS:
            for dtype in DTYPES:
                if not (self.bits and backend == "mlx" and dtype != "float32"):
                    yield backend, dtype


def clean(draw: Draw) -> Iterator[Record]:
    """Check right ports: yield a record for each tap."""
    for backend, dtype in draw.runs():
        right, port = draw.reference(dtype), draw.port(backend, dtype)
        result = check(right, port, draw.tokens, decode=DECODE, positions=draw.positions)
        for tap in result.taps:
            yield {"seed": draw.seed, "port": backend, "dtype": dtype, **measured(tap, dtype)}


def peers(draw: Draw) -> Iterator[Record]:
    """Judge what transformers computes, eager and fused: yield a record for each tap."""
    from lockstep.parity.noise.peer import ATTENTIONS, transformers_taps

    for attention in ATTENTIONS if draw.bits is None else ():
        for dtype in DTYPES:
            taps = transformers_taps(
                draw.path, draw.tokens, draw.positions, dtype=dtype, attention=attention
            )
            oracle = Oracle(draw.reference(dtype), dtype)
            for stage in oracle.stages(draw.tokens, positions=draw.positions):
                for tap in oracle.judge(stage, taps, ""):
                    port = f"transformers {attention}"
                    yield {"seed": draw.seed, "port": port, "dtype": dtype, **measured(tap, dtype)}


def measured(tap: Tap, dtype: str) -> Record:
    """Return the ratios of a tap, and the largest share of its limit that one of them takes."""
    limits, rows = LIMITS[dtype], int(np.prod(tap.shape[:-1]))
    measures = tap.ratio or 0.0, tap.row_ratio or 0.0, tap.cell_ratio or 0.0
    allowed = limits.over(rows), limits.row, limits.cell
    share = max(found / limit for found, limit in zip(measures, allowed, strict=True))
    ratio, row, cell = measures
    return {"op": tap.op, "tap": tap.name, "few": rows == 1, "ratio": ratio, "row": row,
            "cell": cell, "share": share, "alarm": tap.status == "diverged"}  # fmt: skip


def faulty(draw: Draw) -> Iterator[Record]:
    """Plant each small fault in the cpu backend: yield a record for each that has an effect."""
    for dtype in DTYPES:
        right, truth = traced(draw.port("cpu", dtype), draw), draw.reference(dtype)
        for number, name in enumerate(FAULTS):
            port = draw.port("cpu", dtype)
            place = FAULTS[name](port, np.random.default_rng([draw.seed, number]))
            if place is None or same(traced(port, draw), right):
                continue
            result = check(truth, port, draw.tokens, positions=draw.positions)
            about = {"seed": draw.seed, "dtype": dtype, "fault": name}
            yield about | outcome(result, place, everywhere=name in IN_EVERY_LAYER)


def traced(port: Any, draw: Draw) -> dict[str, np.ndarray]:
    taps: dict[str, np.ndarray] = {}
    port.forward(draw.tokens, positions=draw.positions, trace=taps.__setitem__)
    return taps


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[tap], other[tap]) for tap in other)


def outcome(result: Result, place: str, *, everywhere: bool) -> Record:
    """Say whether the fault was found and nothing else was blamed.

    A fault in every layer may be found at a later tap of the same operation: it is there too.
    """
    right = next(tap for tap in result.taps if tap.name == place)
    blamed = [tap for tap in result.taps if tap.status == "diverged"]
    wrong = [tap.name for tap in blamed if not (tap.op == right.op if everywhere else tap is right)]
    found = any(tap.name not in wrong for tap in blamed)
    return {"found": found, "wrongly blamed": wrong, "ratio": right.ratio}


def calibrate(seeds: range, *, with_peers: bool) -> dict[str, list[Record]]:
    """Measure every seed, and say on stderr how far it is."""
    records: dict[str, list[Record]] = {"clean": [], "faulty": []}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            draw = Draw(seed, Path(folder))
            records["clean"] += clean(draw)
            records["clean"] += peers(draw) if with_peers else ()
            records["faulty"] += faulty(draw)
        print(f"seed {seed} of {seeds.start}..{seeds.stop - 1}", file=sys.stderr)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(prog="calibrate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--peers", action="store_true", help="judge transformers too; needs torch")
    parser.add_argument("--by-port", action="store_true", help="a line for each port")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every record")
    parser.add_argument("--from", dest="source", metavar="FILE", type=Path, help="tabulate these")
    options = parser.parse_args()
    if options.source is not None:
        records = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        records = calibrate(seeds, with_peers=options.peers)
    print(tables(**records, by_port=options.by_port))
    if options.json is not None:
        options.json.write_text(json.dumps(records), encoding="utf-8")


if __name__ == "__main__":
    main()
