"""Time every backend, and the peers that are named, on one checkpoint in one run.

Each engine has a process of its own, and after a warm-up they take turns; shown are the medians
over the rounds with the slowest and the fastest, in tokens a second. Read the ratios, not the
figures. Beside them stands what the machine allows: the weights, keys and values read once a
token, the prompt's products in float32. An engine's dtype may follow its name; of llama.cpp, the
type of its copy.

With --decoder it is decoders that take turns, on one backend, on prompts of several kinds.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli import bench_decoders
from lockstep.parity.cli.arguments import DTYPES, add_ignore_config, add_model, ids, whole
from lockstep.parity.cli.output import emit, warn

HELP = "tokens a second and memory of each backend and of other engines"
EXAMPLE = """\
  lockstep bench MODEL --against mlx-lm,transformers,llama.cpp --prompt-tokens 128,1024
  lockstep bench MODEL --against transformers:bfloat16,llama.cpp:Q8_0 --plot speed.svg
  lockstep bench MODEL --decoder wedlm --windows 4,8,16 --backends mlx"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_ignore_config(parser)
    parser.add_argument(
        "--against", metavar="ENGINE,...", default="",
        help="other engines to time: mlx-lm, transformers, llama.cpp",
    )  # fmt: skip
    parser.add_argument(
        "--backends", metavar="NAME,...", default="cpu,mlx,reference",
        help="which of ours; ratios are over the first of them (default cpu,mlx,reference)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=DTYPES[1:],
        help="what is computed in where no name says it (default: float32, on MLX as generate)",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-tokens", metavar="N,...", type=ids, default=[64],
        help="lengths of prompts (default 64)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", metavar="N", type=whole, default=16, help="decoded tokens (default 16)"
    )
    parser.add_argument(
        "--rounds", metavar="N", type=whole, default=5, help="turns of each engine (default 5)"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw it: an SVG picture")
    bench_decoders.add_arguments(parser)


def run(options: Namespace) -> int:
    from pathlib import Path

    from lockstep.parity.cli.bench_table import described
    from lockstep.parity.cli.output import write
    from lockstep.parity.cli.targets import check_target

    asked, peers = check_options(options)
    if options.decoder is not None:
        return bench_decoders.run(options, one_backend(options, asked))
    bench_decoders.refuse_options(options)
    if options.plot is not None:
        check_target(Path(options.plot), [Path(options.model)])
    found = measured(options, asked, peers)
    emit(options, lambda: found, lambda: described(found))
    if options.plot is not None:
        from lockstep.parity.bench.plot import drawn

        write(Path(options.plot), drawn(found))
    return 0


def measured(options: Namespace, asked: list[Any], peers: list[Any]) -> dict[str, Any]:
    """Load the engines, time them, and return what was found as plain data."""
    from lockstep.parity.bench.measure import compared, measure, prompt_of
    from lockstep.parity.bench.workers import Workers
    from lockstep.parity.progress import Progress
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    warn(checkpoint.warnings)
    lengths = sorted(set(options.prompt_tokens))
    check_lengths(lengths, options.max_tokens, checkpoint)
    prompts = [prompt_of(length, checkpoint.config.vocab_size) for length in lengths]
    with Workers() as workers:
        load(workers, options, asked, peers, checkpoint)
        turns = len(workers.engines) * len(prompts) * (2 * options.rounds + 1)
        with Progress(turns) as progress:
            timings = measure(
                workers.engines, prompts, decode=options.max_tokens, rounds=options.rounds,
                progress=progress, leave_out=workers.leave_out,
            )  # fmt: skip
        check_left(workers)
        engines = [
            {"name": label, "dtype": one.dtype, "weights": one.weights}
            for label, one in workers.engines.items()
        ]
        left_out = workers.left_out
    runs = [
        {"prompt_tokens": length, "engines": compared(one)}
        for length, one in zip(lengths, timings, strict=True)
    ]
    return {
        "model": str(checkpoint.path),
        "decoded": options.max_tokens,
        "rounds": options.rounds,
        "left_out": left_out,
        "engines": engines,
        "runs": runs,
    }


def load(
    workers: Any, options: Namespace, asked: list[Any], peers: list[Any], checkpoint: Any
) -> None:
    """Load every engine. Raises: InputError if one of ours fails, or none is left."""
    from lockstep.parity.progress import Progress

    with Progress(len(asked)) as progress:
        for choice in asked:
            workers.add(
                choice, checkpoint, dtype=options.dtype, ignore_config=options.ignore_config,
                ours=choice not in peers,
            )  # fmt: skip
            progress(choice.label)
    check_left(workers)


def check_left(workers: Any) -> None:
    """Raises: InputError if every engine was left out."""
    from lockstep.reference.checkpoint.errors import InputError

    if not workers.engines:
        raise InputError("engines", f"none is left to time: {workers.left_out[0]}")


def check_options(options: Namespace) -> tuple[list[Any], list[Any]]:
    """Return the engines as they are named, those of --against last, and which of them are peers.

    Raises: InputError for unknown engines, and for nothing to time, before a model is loaded.
    """
    from lockstep.parity.bench.choice import OURS, choices_of
    from lockstep.reference.checkpoint.errors import InputError

    asked = choices_of(f"{options.backends},{options.against}")
    if not asked:
        raise InputError("--backends", "names no engine")
    if 0 in options.prompt_tokens:
        raise InputError("--prompt-tokens", "0, but should be at least 1")
    for name in ("max_tokens", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}", "0, but should be at least 1")
    return asked, [one for one in asked if one.name not in OURS]


def check_lengths(lengths: list[int], decoded: int, checkpoint: Any) -> None:
    """Raises: InputError if the longest prompt and what is decoded are more than the context."""
    from lockstep.parity.cli.loading import check_length

    check_length(max(lengths), decoded, checkpoint)


def one_backend(options: Namespace, asked: list[Any]) -> str:
    """Return the first of our backends. Raises: InputError for what --decoder does not take."""
    from lockstep.parity.bench.choice import OURS
    from lockstep.reference.checkpoint.errors import InputError

    if options.against:
        raise InputError("--against", "goes without --decoder: peers have decoders of their own")
    if options.plot is not None:
        raise InputError("--plot", "goes without --decoder")
    if len(options.prompt_tokens) > 1:
        raise InputError("--prompt-tokens", "is one number with --decoder")
    backend = asked[0]
    if backend.name not in OURS or backend.form is not None:
        raise InputError("--backends", f"{backend.label} is no backend, and --decoder needs one")
    return backend.name
