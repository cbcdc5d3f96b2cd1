"""`check --tensor-parallel`: every rank writes its taps, and each is held against its slice."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from lockstep.parity.cli.loading import load
from lockstep.parity.cli.output import emit
from lockstep.parity.cli.ranks import load_here, one_prompt, start_ranks, while_together

TRACES = "LOCKSTEP_TRACES_OF_RANKS"  # the folder in which started ranks write what they made


def run(options: Namespace) -> int:
    """Check as the one that starts the ranks, or write the taps of one of them."""
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    tokens = one_prompt(options, checkpoint)
    folder = os.environ.get(TRACES)
    if folder is not None:
        return write_taps(options, checkpoint, tokens, Path(folder))
    check_backend(options)
    with tempfile.TemporaryDirectory(prefix="lockstep-taps-") as made:
        os.environ[TRACES] = made
        try:
            code = start_ranks(options, checkpoint)
        finally:
            del os.environ[TRACES]
        return code or judge(options, checkpoint, tokens, Path(made))


def check_backend(options: Namespace) -> None:
    """Raises: InputError where there are no processes to check, or others started them."""
    from lockstep.parity.cli.ranks import check_mlx
    from lockstep.reference.checkpoint.errors import InputError

    if options.backend == "reference":
        raise InputError("--tensor-parallel", "checks ranks of fast, mlx or cpu, not the reference")
    check_mlx()
    from lockstep.fast.parallel.group import launched

    if launched():
        raise InputError("--tensor-parallel", "check starts its ranks itself: leave mlx.launch out")


def write_taps(options: Namespace, checkpoint: Any, tokens: list[int], folder: Path) -> int:
    """Be one of the ranks: write the taps of a prefill and of greedy steps."""
    from lockstep.parity.dumps.tracing import trace_run

    with while_together(options):
        model = load(options, options.backend, options.dtype or "float32", checkpoint)
        path = folder / f"{model.group.rank}.safetensors"
        trace_run(model, tokens, path, globs=None, decode=options.decode)
    return 0


def judge(options: Namespace, checkpoint: Any, tokens: list[int], folder: Path) -> int:
    """Compare what the ranks wrote, and say which known bugs make the same."""
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.parallel.compare import compare
    from lockstep.parity.parallel.naming import found_in_traces
    from lockstep.parity.reports.terminal import report

    ranks, dtype = options.tensor_parallel, options.dtype or "float32"
    reference = load_here(checkpoint, ranks, dtype)
    if options.adapter is not None:
        reference = reference.with_adapter(options.adapter, ignore_config=options.ignore_config)
    dumps = [open_dump(folder / f"{rank}.safetensors") for rank in range(ranks)]
    said = f"{options.backend} {dtype}, {ranks} ranks"
    result = compare(reference, dumps, tokens, decode=options.decode, said=said)
    right = result.verdict == "parity"
    found = [] if right else found_in_traces(reference, dumps, tokens, decode=options.decode)
    faults = [{"id": one.bug.id, "wrong": one.bug.wrong, "taps": [*one.mends]} for one in found]
    lines = [f"bug: {one.bug.id}: {one.bug.wrong}" for one in found]
    if not right and not found:
        lines = ["no bug of ranks that is known here makes such taps"]
    emit(
        options,
        lambda: {**result.to_json(), "faults": faults},
        lambda: "\n\n".join([report(result), *(["\n".join(lines)] if lines else [])]),
    )
    return 0 if right else 1
