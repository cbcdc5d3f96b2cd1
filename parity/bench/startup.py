"""What a command takes to its first token: by the clock, and in parts.

    python -m lockstep.parity.bench.startup MODEL [--backend cpu]

The command is `lockstep generate MODEL --max-tokens 1`, run anew each time; the first run warms up
and is not counted. The parts are those of a process that does the same step by step. Processor time
counts as long on a busy machine as on an idle one, or nearly; the clock does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from lockstep.reference.checkpoint.errors import InputError

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
SAID = ",".join(map(str, TOKENS))
CODE = "from lockstep.parity.bench.startup import parts; parts({path!r}, {backend!r})"


class Steps:
    """Keeps what each step took: seconds by the clock, and of a processor."""

    def __init__(self) -> None:
        self.found: list[tuple[str, float, float]] = []

    def __call__(self, name: str, step: Callable[[], Any]) -> Any:
        clock, processor = time.perf_counter(), time.process_time()
        made = step()
        self.found.append((name, time.perf_counter() - clock, time.process_time() - processor))
        return made


def parts(path: str, backend: str) -> None:
    """Load a model and make a token step by step, and print what each took. One process, once."""
    from importlib import import_module

    took = Steps()
    took("import numpy", lambda: import_module("numpy"))
    took("import lockstep", lambda: import_module("lockstep.parity.generating.generation"))
    took("import numba", lambda: import_module("lockstep.fast.kernels").available())
    took("import the backend", lambda: backend_of(backend, "float32"))
    opened = import_module("lockstep.reference.checkpoint.checkpoint").open_checkpoint
    checkpoint = took("config and headers", lambda: opened(path))
    once = import_module("lockstep.parity.generating.generation").tokenizer_of
    took("tokenizer", lambda: once(checkpoint))
    dtype = import_module("lockstep.parity.generating.generation").own_dtype(checkpoint, backend)
    made, chosen = import_module("lockstep.fast.model").Model, backend_of(backend, dtype)
    model = took("weights", lambda: made(checkpoint, dtype=dtype, backend=chosen))

    def passed() -> Any:
        logits = model.forward([TOKENS], last_only=True)
        return int(chosen.argmax(logits[0, 0]))

    took("first pass, kernels among it", passed)
    took("a second pass", passed)
    print(json.dumps(took.found))


def backend_of(name: str, dtype: str) -> Any:
    from lockstep.fast.backends import backend_named

    return backend_named(name, dtype=dtype, device=None)


def command(path: str, backend: str) -> tuple[float, float]:
    """Run the command; return its seconds, and its processor's. Raises: CalledProcessError."""
    words = [sys.executable, "-m", "lockstep.parity.cli", "generate", path, "--tokens", SAID,
             "--max-tokens", "1", "--backend", backend]  # fmt: skip
    clock = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)
    return time.perf_counter() - clock, used.ru_utime + used.ru_stime


def report(path: str, backend: str, *, rounds: int) -> str:
    """Return the command's seconds and its parts, as lines."""
    command(path, backend)
    clock, processor = zip(*(command(path, backend) for _ in range(rounds)), strict=True)
    words = [sys.executable, "-c", CODE.format(path=path, backend=backend)]
    found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    lines = [f"{'':30} clock, s  processor, s"]
    lines += [f"{name:30} {seconds:8.2f}  {busy:12.2f}" for name, seconds, busy in found]
    for name, chosen in (("the command, median", median), ("the command, quickest", min)):
        lines.append(f"{name:30} {chosen(clock):8.2f}  {chosen(processor):12.2f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.startup", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--backend", choices=("cpu", "mlx"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    options = parser.parse_args(argv)
    try:
        check(options.model, options.rounds)
        print(report(options.model, options.backend, rounds=options.rounds))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:  # which has said why
        print(f"a process ended with exit code {error.returncode}", file=sys.stderr)
        return 2
    return 0


def check(path: str, rounds: int) -> None:
    """Raises: InputError if there is no such model, or nothing to measure."""
    if rounds < 1:
        raise InputError("--rounds", f"{rounds}, but should be at least 1")
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    open_checkpoint(path)


if __name__ == "__main__":
    sys.exit(main())
