"""What a command takes to its first token: by the clock, and in parts.

    python -m lockstep.parity.bench.startup MODEL [--backend cpu]

The command is `lockstep generate MODEL --max-tokens 1`, run anew each time; the first run warms up
and is not counted. The first text is what comes first on its standard output. The parts are those
of a process that does the same step by step. Processor time counts as long on a busy machine as on
an idle one, or nearly; the clock does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from lockstep.reference.checkpoint.errors import InputError

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
SAID = ",".join(map(str, TOKENS))
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
CODE = "from lockstep.parity.bench.startup import parts; parts({path!r}, {backend!r})"


class Took(NamedTuple):
    """Seconds by the clock until there is text, and until the command is over; a processor's."""

    text: float
    whole: float
    processor: float


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


def environment(folder: str) -> Mapping[str, str]:
    """Return the environment of a command whose bytecode is kept, as an installed package's is.

    Where Python is told to keep none, it lies in this folder.
    """
    if not sys.dont_write_bytecode:
        return os.environ
    others = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    return others | {"PYTHONPYCACHEPREFIX": folder}


def command(path: str, backend: str, variables: Mapping[str, str] = os.environ) -> Took:
    """Run the command, and say what it took. Raises: CalledProcessError."""
    words = [sys.executable, "-m", "lockstep.parity.cli", "generate", path, "--tokens", SAID,
             "--max-tokens", "1", "--backend", backend]  # fmt: skip
    clock = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=variables) as child:
        assert child.stdout is not None
        os.read(child.stdout.fileno(), 1)
        text = time.perf_counter() - clock
        child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)
    return Took(text, time.perf_counter() - clock, used.ru_utime + used.ru_stime)


def report(path: str, backend: str, *, rounds: int) -> str:
    """Return the command's seconds and its parts, as lines."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        variables = environment(folder)
        command(path, backend, variables)
        took = [command(path, backend, variables) for _ in range(rounds)]
        found = in_parts(path, backend, variables)
    text, whole, processor = zip(*took, strict=True)
    lines = [f"{'':30} clock, s  processor, s"]
    lines += [f"{name:30} {seconds:8.2f}  {busy:12.2f}" for name, seconds, busy in found]
    for name, chosen in (("median", median), ("quickest", min)):
        lines.append(f"{f'its first text, {name}':30} {chosen(text):8.2f}")
        lines.append(f"{f'the command, {name}':30} {chosen(whole):8.2f}  {chosen(processor):12.2f}")
    return "\n".join(lines)


def in_parts(path: str, backend: str, variables: Mapping[str, str]) -> list[Any]:
    words = [sys.executable, "-c", CODE.format(path=path, backend=backend)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=variables)
    return json.loads(done.stdout)


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
