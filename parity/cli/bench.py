"""Time every backend, and the peers that are named, on one checkpoint in one run.

All work greedily and in float32; llama.cpp rounds to less where a file is packed or in half
precision. After a warm-up they take turns; shown are the medians over the rounds with the slowest
and the fastest, in tokens a second. Read the ratios, not the figures.

With --decoder it is decoders that take turns, on one backend, on prompts of several kinds.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli import bench_decoders
from lockstep.parity.cli.arguments import add_ignore_config, add_model, whole
from lockstep.parity.cli.output import emit, table, warn

HELP = "tokens a second of each backend and of other engines"
EXAMPLE = """\
  lockstep bench MODEL --against mlx-lm,transformers,llama.cpp --prompt-tokens 128
  lockstep bench MODEL --decoder wedlm --windows 4,8,16 --backends mlx"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_ignore_config(parser)
    parser.add_argument(
        "--against", metavar="ENGINE,...", default="",
        help="also mlx-lm, transformers and llama.cpp",
    )  # fmt: skip
    parser.add_argument(
        "--backends", metavar="NAME,...", default="cpu,mlx,reference",
        help="ours; the first is what ratios are over (default cpu,mlx,reference)",
    )  # fmt: skip
    parser.add_argument("--prompt-tokens", metavar="N", type=whole, default=64)
    parser.add_argument("--max-tokens", metavar="N", type=whole, default=16, help="decoded")
    parser.add_argument("--rounds", metavar="N", type=whole, default=5)
    bench_decoders.add_arguments(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.bench.measure import document, measure, prompt_of
    from lockstep.parity.progress import Progress
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    check_options(options)
    if options.decoder is not None:
        return bench_decoders.run(options, one_backend(options))
    bench_decoders.refuse_options(options)
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    warn(checkpoint.warnings)
    engines, left_out = chosen(options, checkpoint.path)
    prompt = prompt_of(options.prompt_tokens, checkpoint.config.vocab_size)
    with Progress(len(engines) * (options.rounds + 1)) as progress:
        timings = measure(
            engines, prompt, decode=options.max_tokens, rounds=options.rounds, progress=progress
        )
    about = {
        "model": str(checkpoint.path),
        "dtype": "float32",
        "prompt_tokens": len(prompt),
        "decoded": options.max_tokens,
        "rounds": options.rounds,
        "left_out": left_out,
    }
    found = document(timings, **about)
    emit(options, lambda: found, lambda: described(found))
    return 0


def names(options: Namespace) -> list[str]:
    """Return the engines that are asked for, ours first, each once."""
    return list(dict.fromkeys(filter(None, f"{options.backends},{options.against}".split(","))))


def check_options(options: Namespace) -> None:
    """Refuse unknown engines, and to time nothing, before a model is loaded."""
    from lockstep.parity.bench.engines import check_known
    from lockstep.reference.checkpoint.errors import InputError

    if not names(options):
        raise InputError("--backends", "names no engine")
    for name in names(options):
        check_known(name)
    for name in ("prompt_tokens", "max_tokens", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}", "0, but should be at least 1")


def one_backend(options: Namespace) -> str:
    """Return the first of our backends. Raises: InputError if peers are named too."""
    from lockstep.parity.bench.engines import OURS
    from lockstep.reference.checkpoint.errors import InputError

    if options.against:
        raise InputError("--against", "goes without --decoder: peers have decoders of their own")
    backend = names(options)[0]
    if backend not in OURS:
        raise InputError("--backends", f"{backend} is no backend, and --decoder needs one")
    return backend


def chosen(options: Namespace, path: Any) -> tuple[dict[str, Any], list[str]]:
    """Load the engines; one of ours that fails is an error, a peer that fails is left out."""
    from lockstep.parity.bench.engines import OURS, engine_named
    from lockstep.reference.checkpoint.errors import InputError

    engines, left_out = {}, []
    for name in names(options):
        try:
            engines[name] = engine_named(name, path, ignore_config=options.ignore_config)
        except InputError as error:
            if name in OURS:
                raise
            left_out.append(str(error))
    if not engines:
        raise InputError("engines", f"none is left to time: {left_out[0]}")
    return engines, left_out


def described(found: dict[str, Any]) -> str:
    """Lay the timings out: for each phase the median, its spread, and the ratio."""
    rows = [("tokens a second", "prefill", "", "", "decode", "", "", "first token")]
    for one in found["engines"]:
        cells = [one["name"]]
        for phase in ("prefill", "decode"):
            rate = one[f"{phase}_tokens_per_second"]
            cells += [
                f"{rate['median']:.1f}",
                f"{rate['low']:.1f}-{rate['high']:.1f}",
                f"{one[f'{phase}_ratio']:.2f}x",
            ]
        same = "" if one["same_tokens"] else "  (other tokens)"
        rows.append((*cells, f"{1000 * one['first_token_s']:.1f} ms{same}"))
    told = (
        f"{found['prompt_tokens']} tokens of prompt, {found['decoded']} decoded, float32, "
        f"{found['rounds']} rounds in turn after a warm-up"
    )
    left_out = [f"left out: {line}" for line in found["left_out"]]
    return "\n".join([table(rows, right=frozenset(range(1, 7))), "", told, *left_out])
