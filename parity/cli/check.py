"""Run the reference and a backend in lock step, layer by layer, and say where they part.

Each tap of the backend is held against the reference's own run, and against what the reference
makes of the backend's own inputs: an error is told apart from what it inherited.
"""

from argparse import ArgumentParser, Namespace

from lockstep.parity.cli.arguments import (
    add_adapter,
    add_backend,
    add_choice,
    add_ignore_config,
    add_model,
    add_prompt,
    whole,
)
from lockstep.parity.cli.output import emit
from lockstep.parity.cli.ranks import add_ranks

HELP = "the reference against a backend, layer by layer"
EXAMPLE = """  lockstep check MODEL --prompt "What is 2+2?" --backend mlx --decode 4
  lockstep check MODEL --tokens 1,2,3 --tokens 4,5
  lockstep check MODEL --prompt "$(cat long.txt)" --positions last:8 --taps '*.mlp.*,logits'
  lockstep check MODEL --tokens 1,2,3 --tensor-parallel 2"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser, batch=True)
    add_backend(parser, default="fast", dtype="float32")
    parser.add_argument(
        "--decode", metavar="N", type=whole, default=0,
        help="after the prompt, N steps from the cache with the reference's greedy tokens",
    )  # fmt: skip
    add_choice(parser)
    add_adapter(parser)
    add_ignore_config(parser)
    add_ranks(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.cli.choosing import check_positions, globs_of

    globs = globs_of(options)
    check_positions(options)
    if options.tensor_parallel > 1:
        refuse_choice(options)
        from lockstep.parity.cli import check_ranks

        return check_ranks.run(options)
    from lockstep.parity.check import check
    from lockstep.parity.cli.loading import load, prompt_rows
    from lockstep.parity.dumps.tracing import check_globs
    from lockstep.parity.judging.padding import Padding
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report
    from lockstep.reference.model import load as load_reference

    dtype = options.dtype or "float32"
    ignored = options.ignore_config
    reference = load_reference(options.model, options.adapter, dtype=dtype, ignore_config=ignored)
    check_globs(reference.checkpoint, globs)
    rows = prompt_rows(options, reference.checkpoint)
    check_positions(options, rows)
    lengths = [len(row) for row in rows]
    tokens = Padding(tuple(lengths)).filled(rows)
    port = load(options, options.backend, dtype)
    stages = (options.decode + 1) * (reference.config.num_hidden_layers + 2)
    with Progress(stages) as progress:
        result = check(
            reference, port, tokens, decode=options.decode, lengths=lengths,
            taps=globs, at=options.positions, progress=progress,
        )  # fmt: skip
    emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def refuse_choice(options: Namespace) -> None:
    """Raise InputError for a choice of taps or tokens, which ranks do not know."""
    from lockstep.reference.checkpoint.errors import InputError

    for name in ("taps", "positions"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name}", "does not go with --tensor-parallel")
