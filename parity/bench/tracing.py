"""What writing a trace costs, beside the same run without one.

    python -m lockstep.parity.bench.tracing MODEL                  128 tokens, cpu and reference
    python -m lockstep.parity.bench.tracing MODEL --prompt-tokens 1024

Each round runs the prompt plainly, then with all taps going to nobody, then with all of them going
to a file, and last writes as many bytes to a file from memory: what is beyond the second run and
the last is the harness's own. The plain run makes the logits of all tokens, as a trace does. The
first round warms up and is not counted. Files lie in a temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.bench.choice import OURS
from lockstep.parity.bench.engines import own
from lockstep.parity.bench.measure import prompt_of
from lockstep.parity.bench.room import room
from lockstep.parity.dumps.tracing import trace_run
from lockstep.reference.checkpoint.errors import InputError

PLAIN, TAPS, TRACE, WRITE = "plain run", "taps to nobody", "trace to a file", "bytes to a file"
CHUNK = 1 << 24  # bytes that are written at once
Took = dict[str, tuple[float, float]]  # seconds by the clock, and of processors


def one_round(model: Any, tokens: list[int], path: Path) -> tuple[Took, int]:
    """Return what each run took, and the bytes of the trace."""

    def forward(**trace: Any) -> None:
        fed = np.array([tokens])
        to_numpy(model.forward(fed, cache=model.make_cache(), **trace))

    took = {
        PLAIN: timed(forward),
        TAPS: timed(lambda: forward(trace=lambda name, value: None)),
        TRACE: timed(lambda: trace_run(model, tokens, path, globs=None, decode=0)),
    }
    size = path.stat().st_size
    path.unlink()
    took[WRITE] = timed(lambda: write(path, size))
    path.unlink()
    return took, size


def timed(call: Callable[[], object]) -> tuple[float, float]:
    clock, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - busy


def write(path: Path, size: int) -> None:
    """Write so many bytes, and wait until they are on the disk."""
    some = np.arange(CHUNK, dtype=np.uint8).data
    with path.open("xb") as file:
        for start in range(0, size, CHUNK):
            file.write(some[: size - start])
        file.flush()
        os.fsync(file.fileno())


def said(backend: str, count: int, rounds: list[Took], size: int) -> str:
    """Return seconds and ratios to the plain run of the same round: median, least and most."""
    lines = [f"{backend}, {count} tokens, a trace of {size / 1e9:.2f} GB",
             f"  {'':16}  clock, s  over plain            processor, s  over plain"]  # fmt: skip
    for name in rounds[0]:
        line = f"  {name:16}"
        for kind, wide in ((0, 8), (1, 12)):
            ratios = [one[name][kind] / one[PLAIN][kind] for one in rounds]
            spread = f"{median(ratios):.2f}  {min(ratios):.2f}-{max(ratios):.2f}"
            line += f"  {median(one[name][kind] for one in rounds):{wide}.2f}  {spread:20}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.tracing", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("--backends", default="cpu,reference", help="default %(default)s")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where there is room (default: that of temporary files)")
    options = parser.parse_args(argv)
    try:
        check(options)
        with room(options.folder) as folder:
            for backend in options.backends.split(","):
                print(report(backend, options, folder), flush=True)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def report(backend: str, options: argparse.Namespace, folder: Path) -> str:
    model = own(backend, options.model, "float32", ())
    tokens = prompt_of(options.prompt_tokens, model.config.vocab_size)
    path = folder / "trace.safetensors"
    found = [one_round(model, tokens, path) for _ in range(options.rounds + 1)][1:]
    return said(backend, len(tokens), [took for took, _ in found], found[0][1])


def check(options: argparse.Namespace) -> None:
    """Raises: InputError if a backend is none of ours, or nothing is to be measured."""
    for backend in options.backends.split(","):
        if backend not in OURS:
            raise InputError("--backends", f"{backend!r} is none of {', '.join(OURS)}")
    for name in ("prompt_tokens", "rounds"):
        if getattr(options, name) < 1:
            what = f"{getattr(options, name)}, but should be at least 1"
            raise InputError("--" + name.replace("_", "-"), what)


if __name__ == "__main__":
    sys.exit(main())
