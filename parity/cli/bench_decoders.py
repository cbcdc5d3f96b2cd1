"""`bench --decoder`: decoders against plain decoding, on several kinds of prompt."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import ids
from lockstep.parity.cli.output import counted, emit, table
from lockstep.parity.cli.sampling import add_sampling
from lockstep.parity.decoders import NAMES, add_options, decoder_of

if TYPE_CHECKING:
    from lockstep.parity.bench.decoders import Way

PLAIN, DTYPE = "autoregressive", "float32"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--decoder", choices=NAMES, metavar="NAME",
        help="time this decoder against plain decoding, on the first of --backends: "
        + ", ".join(NAMES),
    )  # fmt: skip
    parser.add_argument(
        "--windows", metavar="W,...", type=ids, help="of wedlm: several windows, one after another"
    )
    add_options(parser)
    greedy = ArgumentParser(add_help=False)
    add_sampling(greedy)
    parser.set_defaults(**vars(greedy.parse_args([])), cache=None, activations=DTYPE)


def refuse_options(options: Namespace) -> None:
    """Refuse options of decoders where none is named. Raises: InputError."""
    from lockstep.parity.decoders import module_of
    from lockstep.reference.checkpoint.errors import InputError

    for name in ("windows", *(option for one in NAMES for option in module_of(one).OPTIONS)):
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')}", "goes with --decoder")


def run(options: Namespace, backend: str) -> int:
    from lockstep.parity.bench.decoders import measure_decoders
    from lockstep.parity.bench.prompts import prompts_for
    from lockstep.parity.cli.loading import load
    from lockstep.parity.generating.generation import tokenizer_of
    from lockstep.parity.progress import Progress

    ways = ways_of(options)
    dtype = options.dtype or DTYPE
    model = load(options, backend, dtype)
    vocabulary = model.config.vocab_size
    prompts = prompts_for(tokenizer_of(model.checkpoint), vocabulary, options.prompt_tokens[0])
    check_fits(prompts, options, model)
    with Progress(len(prompts) * len(ways) * (options.rounds + 1)) as progress:
        rows = measure_decoders(
            model, prompts, ways, max_tokens=options.max_tokens, rounds=options.rounds,
            progress=progress,
        )  # fmt: skip
    found = {
        "model": str(model.checkpoint.path),
        "backend": backend,
        "dtype": dtype,
        "decoded": options.max_tokens,
        "rounds": options.rounds,
        "decoders": rows,
    }
    emit(options, lambda: found, lambda: described(found))
    return 0


def ways_of(options: Namespace) -> list[Way]:
    """Return plain decoding and what is asked for, each window by itself.

    Raises: InputError for what a decoder refuses.
    """
    from lockstep.parity.bench.decoders import Way
    from lockstep.parity.decoders.autoregressive import Autoregressive
    from lockstep.reference.checkpoint.errors import InputError

    if options.max_tokens < 2:
        raise InputError("--max-tokens", "1, but the first token is not timed; 2 or more are")
    ways = [Way(PLAIN, Autoregressive())]
    if options.windows is not None and options.decoder != "wedlm":
        raise InputError("--windows", "goes with --decoder wedlm")
    if options.windows is not None and options.window is not None:
        raise InputError("--windows", "and --window say the same")
    if options.decoder == "wedlm":
        for window in options.windows or [options.window or 16]:
            one = decoder_of(Namespace(**vars(options) | {"window": window}))
            ways.append(Way(f"wedlm, window {window}", one))
    elif options.decoder != PLAIN:
        ways.append(Way(options.decoder, decoder_of(options)))
    return ways


def check_fits(prompts: Sequence[Any], options: Namespace, model: Any) -> None:
    """Raises: InputError if a prompt and what is decoded are more than the context has."""
    from lockstep.parity.cli.loading import check_length
    from lockstep.parity.generating.generation import tokenizer_of

    tokenizer = tokenizer_of(model.checkpoint)
    for prompt in prompts:
        check_length(len(prompt.tokens(tokenizer)), options.max_tokens, model.checkpoint)


HEAD = ("prompt", "decoder", "tokens a second", "", "", "tokens/forward", "p_cache", "accepted",
        "tokenise", "prefill", "steps", "first token")  # fmt: skip


def described(found: dict[str, Any]) -> str:
    """Lay rows out: rate, its spread and ratio, the counts, and milliseconds of each part."""
    rows: list[tuple[str, ...]] = [HEAD]
    kind = None
    for one in found["decoders"]:
        rate = one["tokens_per_second"]
        shown = f"{one['prompt']}, {one['prompt_tokens']} tokens" if one["prompt"] != kind else ""
        kind = one["prompt"]
        rows.append(
            (
                shown,
                one["decoder"],
                f"{rate['median']:.1f}",
                f"{rate['low']:.1f}-{rate['high']:.1f}",
                f"{one['ratio']:.2f}x",
                *(share(one[name]) for name in RATIOS),
                *(milliseconds(one[name]) for name in TIMES),
            )
        )
    told = (
        f"{found['decoded']} tokens decoded greedily on {found['backend']}, {found['dtype']}, "
        f"{counted(found['rounds'], 'round')} in turn after a warm-up"
    )
    return "\n".join([table(rows, right=frozenset(range(2, 12))), "", told])


RATIOS = ("tokens_per_forward", "p_cache", "acceptance")
TIMES = ("tokenize_s", "prefill_s", "steps_s", "first_token_s")


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
