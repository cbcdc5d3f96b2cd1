"""How fast two traces are compared, beside how fast the machine reads the same files.

    python -m lockstep.parity.bench.comparing                   two traces of 1 GB
    python -m lockstep.parity.bench.comparing --dtype bfloat16  of half the bytes a number
    python -m lockstep.parity.bench.comparing --gb 20 --sparse  mostly holes, for the memory
    python -m lockstep.parity.bench.comparing --cold            from the disk, not the page cache

Each round reads both files as `diff` does, with as many threads and the same pieces, and then
compares them in a process of its own, which says the most memory that it had. The traces lie in a
temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lockstep.parity.bench.room import room
from lockstep.parity.dumps.crew import cores
from lockstep.parity.dumps.parts import PIECE
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.judging.judge import EPSILONS
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.precision import dtype_named

DTYPES = ("float32", "bfloat16", "float16")
NUMBERS = 1 << 24  # that are drawn; a tensor repeats them
CHILD = """
import json, sys, time
from lockstep.parity.bench.memory import peak_bytes
from lockstep.parity.diff import diff
began, worked = time.perf_counter(), time.process_time()
found = diff(*sys.argv[1:])
took = time.perf_counter() - began, time.process_time() - worked
print(json.dumps([*took, peak_bytes(), found.verdict, found.compared]))
"""


def main(argv: list[str] | None = None) -> int:
    options = parsed(argv)
    try:
        with room(options.folder) as folder:
            print(said(measured(folder, options), options))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def measured(folder: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    paths = [folder / side for side in ("left.safetensors", "right.safetensors")]
    for off, path in zip((0.0, EPSILONS[options.dtype]), paths, strict=True):
        write(path, options.gb, options.tensor_gb, off, options.dtype, sparse=options.sparse)
    return [one_round(paths, cold=options.cold) for _ in range(options.rounds)]


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.comparing", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--gb", type=float, default=1, help="of each trace (default 1)")
    parser.add_argument("--tensor-gb", type=float, default=0.25, help="of each tensor")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where there is room (default: that of temporary files)")
    parser.add_argument("--sparse", action="store_true", help="write little more than holes")
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache")
    return parser.parse_args(argv)


def write(
    path: Path, gb: float, tensor_gb: float, off: float, dtype: str = "float32", *, sparse: bool
) -> None:
    """Write a trace of random numbers, `off` beside those of another; its holes are zeros."""
    kind = dtype_named(dtype)
    item = kind.itemsize
    size = max(int(tensor_gb * 1e9) // item, 1)
    count = max(round(gb / tensor_gb), 1)
    entries = {
        f"model.layers.{layer}": {
            "dtype": TAGS[dtype], "shape": [1, 1, size],
            "data_offsets": [layer * size * item, (layer + 1) * size * item],
        } for layer in range(count)
    }  # fmt: skip
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[1]", "dtype": dtype}
    header = json.dumps({"__metadata__": about, **entries}).encode()
    drawn = np.random.default_rng(0).standard_normal(min(size, NUMBERS), np.float32)
    numbers = (drawn + np.float32(off) * np.abs(drawn)).astype(kind)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for layer in range(count):
            file.seek(8 + len(header) + layer * size * item)
            for start in range(0, PIECE if sparse else size, numbers.size):
                some = numbers[: min(size - start, PIECE if sparse else size)]
                file.write(some.view(np.uint8).data)
        file.truncate(8 + len(header) + count * size * item)


def one_round(paths: list[Path], *, cold: bool) -> dict[str, float]:
    """Return the seconds of reading both files and of comparing them, and that one's memory."""
    forget(paths if cold else [])
    read, reading = read_all(paths)
    forget(paths if cold else [])
    command = [sys.executable, "-c", CHILD, *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    took, worked, peak, verdict, compared = json.loads(found)
    if verdict != "parity" or not compared:
        raise RuntimeError(f"{verdict}, of {compared} tensors")
    total = sum(path.stat().st_size for path in paths)
    return {"bytes": total, "read": read, "reading": reading, "diff": took, "working": worked,
            "peak": peak}  # fmt: skip


def read_all(paths: list[Path]) -> tuple[float, float]:
    """Return the seconds, by the clock and of processors, in which all cores read both files."""
    size, threads = PIECE * 4, cores()

    def some(first: int) -> None:
        buffer = bytearray(size)
        for path in paths:
            with path.open("rb", buffering=0) as file:
                for start in range(first * size, path.stat().st_size, threads * size):
                    os.preadv(file.fileno(), [buffer], start)

    began, worked = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(threads)))
    return time.perf_counter() - began, time.process_time() - worked


def forget(paths: list[Path]) -> None:
    """Drop files from the page cache, so that the disk is read."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def said(rounds: list[dict[str, float]], options: argparse.Namespace) -> str:
    def spread(values: list[float], form: str) -> str:
        middle = form.format(statistics.median(values))
        return f"{middle}  {form.format(min(values))}-{form.format(max(values))}"

    def rate(key: str) -> str:
        return spread([one["bytes"] / one[key] / 1e9 for one in rounds], "{:.1f}")

    where = "the disk" if options.cold else "the page cache"
    rows = [
        [f"read from {where}", rate("read"), "GB/s"],
        ["diff", rate("diff"), "GB/s"],
        ["diff over read", spread([one["read"] / one["diff"] for one in rounds], "{:.0%}"), ""],
        ["read, a second of a processor", rate("reading"), "GB"],
        ["diff, a second of a processor", rate("working"), "GB"],
        ["memory of diff at most", f"{max(one['peak'] for one in rounds) / 1e6:.0f}", "MB"],
    ]
    told = f"two traces of {rounds[0]['bytes'] / 2e9:.1f} GB, {cores()} threads"
    told += f", tensors of {options.tensor_gb} GB in {options.dtype}"
    return "\n".join([told + (", mostly holes" if options.sparse else ""), *map(row, rows)])


def row(cells: list[str]) -> str:
    return f"  {cells[0]:32} {cells[1]} {cells[2]}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
