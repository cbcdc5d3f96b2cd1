"""What `generate` and `chat` share: how text is made, and when it ends."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import (
    above_zero,
    add_adapter,
    add_backend,
    add_ignore_config,
    ids,
    whole,
)
from lockstep.parity.cli.experts import add_expert_budget, check_expert_budget
from lockstep.parity.cli.sampling import add_sampling, check_sampling, sampling_of
from lockstep.parity.decoders import add_decoders, decoder_of

if TYPE_CHECKING:
    from lockstep.parity.generating.generation import Generation

CACHES = (
    "concatenating", "growing", "preallocated", "sliding", "rotating", "rotating-mlx-lm",
    "rotating-temporal", "int8", "affine8", "affine4", "turbo4", "turbo3", "turbo2",
    "turbo4-mse", "turbo3-mse", "turbo2-mse",
)  # fmt: skip
ACTIVATIONS = ("float32", "int16", "int8")


def add_writing(parser: ArgumentParser, *, max_tokens: int, caches: tuple[str, ...]) -> None:
    add_backend(parser, default="fast", dtype="the checkpoint's on mlx, else float32")
    parser.add_argument(
        "--activations", choices=ACTIVATIONS, default="float32",
        help="on cpu, what a pass of four or more tokens rounds activations to before packed "
        "weights multiply them: quicker, and less exact (default float32)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", metavar="N", type=whole, default=max_tokens,
        help=f"at most (default {max_tokens})",
    )  # fmt: skip
    add_ends(parser)
    add_sampling(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--seed", metavar="S", type=whole, default=0, help="of the random numbers (default 0)"
    )
    source.add_argument("--uniforms", metavar="FILE", help="numbers in [0, 1), one a token")
    parser.add_argument(
        "--cache", choices=caches, metavar="NAME",
        help="how keys and values are kept: %(choices)s (default concatenating on the reference, "
        "growing elsewhere)",
    )  # fmt: skip
    parser.add_argument(
        "--cache-size", metavar="N", type=whole, help="tokens that a rotating cache holds"
    )
    parser.add_argument(
        "--keep", metavar="K", type=whole,
        help="how many of the first tokens a rotating cache keeps (default 0)",
    )  # fmt: skip
    parser.add_argument(
        "--recent", metavar="N", type=whole,
        help="how many of the newest tokens a turbo cache does not quantise (default 128)",
    )  # fmt: skip
    parser.add_argument(
        "--prefill-chunk", metavar="N", type=above_zero,
        help="read the prompt N tokens at a time, which takes less memory (default: all at once; "
        "in a chat 512, unless that could change a token)",
    )  # fmt: skip
    add_expert_budget(parser)
    add_decoders(parser)
    add_adapter(parser)
    add_ignore_config(parser)


def add_thinking(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--thinking", action=BooleanOptionalAction,
        help="let the model think before it answers, or not, where its chat template can say so "
        "(default: as the template does)",
    )  # fmt: skip


def add_ends(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[],
        help="end before this text, which is not shown (may be given again)",
    )  # fmt: skip
    parser.add_argument(
        "--stop-id", metavar="1,2", type=ids, default=[],
        help="token ids that end the text, beside the model's own",
    )  # fmt: skip
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the end of text")


class Writing:
    """The options of `add_writing`. What is refused of them is refused before a model loads."""

    def __init__(self, options: Namespace):
        from lockstep.parity.generating.uniforms import uniforms
        from lockstep.reference.checkpoint.checkpoint import open_checkpoint
        from lockstep.reference.tokenizer.stop_strings import StopStrings

        self.options = options
        self.sampling = sampling_of(options)
        self.numbers = uniforms(options.uniforms, options.seed)
        StopStrings(options.stop)
        check_cache(options)
        check_expert_budget(options)
        self.checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
        check_sampling(self.sampling, self.checkpoint)
        check_ends(options, self.checkpoint)
        self.decoder = decoder_of(options)

    def generation(self, *, chat: bool) -> Generation:
        """Load the model, and return what writes with it, `chat` or plain text."""
        from lockstep.parity.cli.loading import load
        from lockstep.parity.generating.generation import Generation, own_dtype

        options = self.options
        dtype = options.dtype or own_dtype(self.checkpoint, options.backend)
        return Generation(
            load(options, options.backend, dtype, self.checkpoint),
            self.sampling,
            self.numbers,
            ignore_eos=options.ignore_eos,
            cache=options.cache,
            size=options.cache_size,
            keep=options.keep,
            recent=options.recent,
            decoder=self.decoder,
            stop_ids=options.stop_id,
            stop_strings=options.stop,
            chunk=options.prefill_chunk,
            chat=chat,
        )


def check_cache(options: Namespace) -> None:
    from lockstep.reference.stores.kinds import CacheOptions, check_kind

    if getattr(options, "load_cache", None) is not None:  # the file says what it is
        return
    kind, room = options.cache or "growing", 1 if options.cache == "preallocated" else None
    check_kind(kind, CacheOptions(room, options.cache_size, options.keep, options.recent))


def check_ends(options: Namespace, checkpoint: Any) -> None:
    from lockstep.parity.generating.generation import tokenizer_of
    from lockstep.reference.checkpoint.errors import InputError

    size = checkpoint.config.vocab_size
    for token in options.stop_id:
        if token >= size:
            raise InputError("--stop-id", f"token id {token}, but should be 0..{size - 1}")
    if options.stop and tokenizer_of(checkpoint) is None:
        raise InputError("--stop", "needs a tokenizer, but this model has none that can be read")


def summary(document: dict[str, Any], said: str) -> str:
    """Return the line at the end of an answer: how much, how fast, and why no more."""
    from lockstep.parity.cli.output import counted

    parts, timings = [counted(document["tokens"], "token")], document["timings"]
    if timings["decode_tokens_per_second"]:
        parts.append(f"{timings['decode_tokens_per_second']:.1f} a second")
    if timings["first_token_s"] is not None:
        parts.append(f"the first after {timings['first_token_s']:.2f} s")
    why = {"context": ["the model's context is full"], "interrupted": ["interrupted"]}
    full = why.get(document["ended_by"], [])
    return f"[{', '.join([*parts, *([said] if said else []), *full])}]"
