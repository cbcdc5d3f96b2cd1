"""`lockstep diff` of sketched traces: where they part, and what to write whole next."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.output import counted, emit, printable, write

if TYPE_CHECKING:
    from lockstep.parity.judging.result import Result

FEW = 8  # names on a line to copy
BEGINS = "# write these whole on both sides"
HEAD = BEGINS + ": lockstep trace ... --taps @{file}"


def run(options: Namespace, left: Any, right: Any) -> int:
    from lockstep.parity.diff import diff
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report
    from lockstep.parity.sketches.reading import reads_of
    from lockstep.reference.checkpoint.errors import InputError

    if options.backend is not None or options.adapter is not None:
        raise InputError("--backend and --adapter", "compute again, which needs whole tensors")
    reads = None if options.model is None else reads_of(options.model, options.ignore_config)
    with Progress(len(right.shapes)) as progress:
        result = diff(left, right, reads=reads, progress=progress)
    if options.suspects is not None:
        lines = [HEAD.format(file=Path(options.suspects).name), *result.suspects]
        write(Path(options.suspects), "\n".join(lines) + "\n")
    emit(
        options,
        result.to_json,
        lambda: "\n\n".join(filter(None, [report(result), next_(options, result)])),
    )
    return 0 if result.verdict == "parity" else 1


def next_(options: Namespace, result: Result) -> str:
    """Say what to write whole next, in a form to copy."""
    from lockstep.parity.naming.names import step_of

    if not result.suspects or result.first_divergence is None:
        return ""
    names = ",".join(result.suspects)
    if options.suspects is not None:
        names = f"@{options.suspects}"
    elif len(result.suspects) > FEW:
        return printable(
            f"next: {counted(result.suspects, 'tap')} to write whole; --suspects FILE lists them"
        )
    step = step_of(result.first_divergence.name)
    decode = f" --decode {step}" if step else ""
    lines = [
        "next: write these whole on both sides, and let `diff --model` or `explain` judge them:",
        f"  --taps '{names}'{decode}",
    ]
    return printable("\n".join(lines))
