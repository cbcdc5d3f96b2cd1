"""Measure decoding with experts that stay on the disk: budgets, hits, bytes, waits and memory.

    python -m lockstep.parity.bench.streaming MODEL --budgets 1GB,2GB,4GB

Each budget has a process of its own. The file's pages are dropped from the system's cache all the
while, as they would be if there were no memory for them; so what is read comes from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.cli.arguments import above_zero, size
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

PROMPT = "3"  # of one token, so that every pass visits as many experts
HEAT = "100"  # any token is as likely: a text that repeats itself would visit the same experts
PIECE = 1 << 20  # bytes of a read when the disk's rate is measured
SECONDS = 3.0  # for how long that is


@dataclass(frozen=True)
class Streamed:
    """One run: what its report says, its time for a token, and its peak memory in bytes."""

    report: dict[str, Any]
    token_s: float
    peak: int


def files_of(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors")) if model.is_dir() else [model]


def forget(files: list[Path]) -> None:
    """Drop the pages of files from the system's cache, where the system can be told to."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def disk_rate(files: list[Path]) -> float:
    """Return bytes a second of reads at random places, one after another."""
    forget(files)
    file, rng, read = max(files, key=lambda file: file.stat().st_size), np.random.default_rng(1), 0
    descriptor, pieces = os.open(file, os.O_RDONLY), max(1, file.stat().st_size // PIECE)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        read += len(os.pread(descriptor, PIECE, PIECE * int(rng.integers(pieces))))
    rate = read / (time.perf_counter() - began)
    os.close(descriptor)
    return rate


def run(model: Path, budget: str, tokens: int, backend: str) -> Streamed:
    """Generate in a process of its own, with the cache of pages kept empty.

    Raises: InputError if the command refuses, with what it said.
    """
    files = files_of(model)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        result = Path(folder) / "result.json"
        words = ["generate", str(model), "--tokens", PROMPT, "--max-tokens", str(tokens),
                 "--ignore-eos", "--temperature", HEAT, "--backend", backend,
                 "--expert-budget", budget, "--json", str(result)]  # fmt: skip
        command = [sys.executable, "-m", "lockstep.parity.cli", *words]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
            forget(files)
            time.sleep(0.02)
        child.returncode = os.waitstatus_to_exitcode(ended[1])
        if child.returncode:
            assert child.stderr is not None
            raise InputError(model, child.stderr.read().decode(errors="replace").strip())
        found = json.loads(result.read_text(encoding="utf-8"))
    unit = 1 if sys.platform == "darwin" else 1024
    token_s = 1 / found["timings"]["decode_tokens_per_second"]
    return Streamed(found["experts"], token_s, ended[2].ru_maxrss * unit)


def table(runs: dict[str, Streamed], rate: float, dense: int, tokens: int) -> str:
    """Return the runs as lines, with what the disk and the budget would allow beside each."""
    lines = [
        f"experts {experts_of(runs) / 1e9:.2f} GB, the rest {dense / 1e9:.2f} GB; "
        f"the disk gives {rate / 1e9:.2f} GB/s in pieces of a megabyte",
        "budget   there  guessed right  read a token  ms a token  by the disk  waited      peak",
    ]
    for budget, one in runs.items():
        report = one.report
        read = report["bytes_read"] / tokens
        guessed = report["guessed_right"] / max(1, report["guesses"])
        waited = report["stalled_s"] / tokens
        lines.append(
            f"{budget:8} {report['hits'] / max(1, report['visits']):5.0%} {guessed:14.0%} "
            f"{read / 1e6:10.0f} MB {1e3 * one.token_s:11.0f} {1e3 * read / rate:12.0f} "
            f"{1e3 * waited:7.0f} {one.peak / 1e9:6.2f} GB"
        )
    return "\n".join(lines)


def experts_of(runs: dict[str, Streamed]) -> int:
    return next(iter(runs.values())).report["experts"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.streaming", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("--budgets", metavar="SIZE,SIZE", required=True)
    parser.add_argument("--max-tokens", metavar="N", type=above_zero, default=32)
    parser.add_argument("--backend", choices=("cpu", "mlx"), default="cpu")
    options = parser.parse_args(argv)
    try:
        if options.max_tokens < 2:
            raise InputError("--max-tokens", "1, but should be at least 2: the first is no step")
        budgets = options.budgets.split(",")
        for one in budgets:
            size(one)
        runs = {
            one: run(options.model, one, options.max_tokens, options.backend) for one in budgets
        }
        checkpoint = open_checkpoint(options.model)
        whole = sum(checkpoint.stored(name).nbytes for name in checkpoint.names)
        rate = disk_rate(files_of(options.model))
        print(table(runs, rate, whole - experts_of(runs), options.max_tokens))
    except (InputError, argparse.ArgumentTypeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
