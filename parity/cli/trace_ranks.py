"""`trace --tensor-parallel`: every rank writes its own taps, to a file of its own."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

from lockstep.parity.cli.loading import load
from lockstep.parity.cli.ranks import one_prompt, start_ranks, starts_ranks, while_together


def run(options: Namespace, globs: list[str] | None) -> dict[str, Any] | int:
    """Write the traces, as all ranks or as one of them; return what was written.

    Return an exit code where other processes do it, the first of which says what it wrote.
    """
    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.dumps.steps import names_caches
    from lockstep.parity.dumps.tracing import check_globs, trace_run
    from lockstep.parity.parallel.rank_files import check_pattern, path_of
    from lockstep.parity.parallel.rank_traces import TraceFiles, file_of
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint
    from lockstep.reference.checkpoint.errors import InputError

    if options.backend == "transformers":
        raise InputError("--tensor-parallel", "does not go with --backend transformers")
    for option in ("positions", "sketch", "resume"):
        if getattr(options, option):
            raise InputError(f"--{option}", "does not go with --tensor-parallel")
    if options.backend == "reference" and names_caches(globs):
        raise InputError("--taps", "what caches hold is not written of ranks on the reference")
    check_pattern(options.out_file)
    for rank in range(options.tensor_parallel):
        check_trace_target(path_of(options.out_file, rank))
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    check_globs(checkpoint, globs)
    tokens = one_prompt(options, checkpoint)
    if starts_ranks(options):
        return start_ranks(options, checkpoint)
    with while_together(options):
        model = load(options, options.backend, options.dtype or "float32", checkpoint)
        group = getattr(model, "group", None)
        ranks = options.tensor_parallel
        files = partial(TraceFiles, ranks) if group is None else partial(file_of, group.rank, ranks)
        made = trace_run(
            model, tokens, options.out_file, globs=globs, decode=options.decode, files=files
        )
    return made | {"ranks": ranks}
