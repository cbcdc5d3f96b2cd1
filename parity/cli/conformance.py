"""Run every operation of a port on shapes and values that hurt, against the reference.

Hypothesis draws the examples and makes the one that fails as small as it can. The port is one of
our backends, a Python module with functions under the operations' names, or any program that
answers over a pipe: docs/parity/conformance.md has the protocol.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from typing import Any

from lockstep.parity.cli.arguments import whole
from lockstep.parity.cli.output import emit

HELP = "single operations of a port, on examples that hurt"
EXAMPLE = '  lockstep conformance --exec "python my_worker.py" --op rms_norm'
OURS = ("fast", "mlx", "cpu", "reference")
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--backend", metavar="NAME", default="fast",
        help="fast, mlx, cpu, or a Python MODULE or MODULE:NAME (default fast)",
    )  # fmt: skip
    who.add_argument("--exec", metavar="COMMAND", help="a program that speaks the pipe protocol")
    parser.add_argument(
        "--op", metavar="NAME", action="append", default=[],
        help="this operation alone (may be given again)",
    )  # fmt: skip
    parser.add_argument(
        "--examples", metavar="N", type=whole, default=100, help="of each operation (default 100)"
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=whole,
        default=0,
        help="what examples are drawn from (default 0)",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="what is computed in (default float32)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=whole, default=30,
        help="how long --exec may take for one answer (default 30)",
    )  # fmt: skip


def run(options: Namespace) -> int:
    from lockstep.parity.conformance.examine import hypothesis_package
    from lockstep.parity.conformance.run import chosen, conformance
    from lockstep.parity.conformance.table import BAD, described, document
    from lockstep.parity.progress import Progress
    from lockstep.reference.precision import dtype_named

    check_numbers(options)
    names, dtype = chosen(options.op), dtype_named(options.dtype)
    hypothesis_package()
    with redirect_stdout(sys.stderr):
        backend = opened(options)
    about = {"dtype": options.dtype, "seed": options.seed, "examples": options.examples}
    try:
        with redirect_stdout(sys.stderr), Progress(len(names)) as progress:
            rows = conformance(
                backend, names, examples=options.examples, seed=options.seed, dtype=dtype,
                progress=progress,
            )  # fmt: skip
    finally:
        backend.close()
    emit(
        options,
        lambda: document(rows, backend.name, **about),
        lambda: described(rows, f"{backend.name}, {options.dtype}", again(options)),
    )
    return int(any(row.status in BAD for row in rows))


def check_numbers(options: Namespace) -> None:
    from lockstep.reference.checkpoint.errors import InputError

    for name in ("examples", "timeout"):
        if not 1 <= getattr(options, name) <= 100_000:
            raise InputError(f"--{name}", f"{getattr(options, name)}, but should be 1 to 100000")


def opened(options: Namespace) -> Any:
    """Return the backend that is asked for. Raises: InputError if it cannot be used."""
    from lockstep.parity.conformance.backends.module import Module
    from lockstep.parity.conformance.backends.ours import Ours
    from lockstep.parity.conformance.backends.program import Program
    from lockstep.parity.named_object import looks_named, named_object
    from lockstep.reference.checkpoint.errors import InputError

    if options.exec is not None:
        return Program(options.exec, seconds=options.timeout)
    if options.backend in OURS:
        return Ours(options.backend, options.dtype)
    if not looks_named(options.backend):
        raise InputError("--backend", f"{options.backend} is no name of a module")
    return Module(options.backend, named_object(options.backend))


def again(options: Namespace) -> str:
    """Return the command that finds the same example again, without its operation."""
    from shlex import quote

    who = f"--exec {quote(options.exec)}" if options.exec is not None else None
    parts = ["lockstep conformance", who or f"--backend {quote(options.backend)}"]
    for name, usual in (("examples", 100), ("seed", 0), ("dtype", "float32"), ("timeout", 30)):
        if getattr(options, name) != usual:
            parts.append(f"--{name} {getattr(options, name)}")
    return " ".join(parts)
