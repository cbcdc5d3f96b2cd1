"""Continue a prompt, greedily or sampled, and print the text as it is made.

Random numbers come from a seed or a file, and every backend turns them into tokens by the same
rules, in this order: logit bias, penalties, temperature, top-k, top-p, min-p, typical. Another
engine's order and rules: --semantics.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import (
    add_adapter,
    add_backend,
    add_ignore_config,
    add_model,
    add_prompt,
    whole,
)
from lockstep.parity.cli.sampling import add_sampling, check_sampling, sampling_of

CACHES = ("concatenating", "growing", "preallocated", "sliding", "int8", "affine8", "affine4")
HELP = "continue a prompt"
EXAMPLE = """\
  lockstep generate MODEL --prompt "What is 2+2?" --chat --backend fast
  lockstep generate MODEL --tokens 1,2,3 --temperature 0.8 --top-p 0.9 --semantics llama.cpp"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser)
    parser.add_argument("--chat", action="store_true", help="as a user's turn in the chat template")
    add_backend(parser, default="fast", dtype="the checkpoint's on mlx, else float32")
    parser.add_argument(
        "--max-tokens", metavar="N", type=whole, default=256, help="at most (default 256)"
    )
    add_sampling(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--seed", metavar="S", type=whole, default=0, help="of the random numbers (default 0)"
    )
    source.add_argument("--uniforms", metavar="FILE", help="numbers in [0, 1), one a token")
    parser.add_argument(
        "--cache", choices=CACHES, metavar="NAME",
        help="how keys and values are kept: %(choices)s (default concatenating on the reference, "
        "growing elsewhere)",
    )  # fmt: skip
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the end of text")
    add_adapter(parser)
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.cli.loading import load, prompt_tokens
    from lockstep.parity.cli.speech import Speech
    from lockstep.parity.generating import Generation, own_dtype
    from lockstep.parity.uniforms import uniforms
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint
    from lockstep.reference.checkpoint.errors import InputError

    if options.chat and options.prompt is None:
        raise InputError("--chat", "goes with --prompt: token ids are taken as they are")
    sampling = sampling_of(options)
    numbers = uniforms(options.uniforms, options.seed)
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    check_sampling(sampling, checkpoint)
    tokens = prompt_tokens(options, checkpoint)
    model = load(options, options.backend, options.dtype or own_dtype(checkpoint, options.backend))
    generation = Generation(
        model, sampling, numbers, ignore_eos=options.ignore_eos, cache=options.cache
    )
    with Speech(quiet=options.json == "-") as speech:
        document = generation.run(tokens, options.max_tokens, speech)
    finish(options, document, full_context=generation.context_is_full)
    return 0


def finish(options: Namespace, document: dict[str, Any], *, full_context: bool) -> None:
    from lockstep.parity.cli.output import counted, emit

    speed = document["timings"]["decode_tokens_per_second"]
    rate = f", {speed:.1f} a second" if speed else ""
    full = ", the model's context is full" if full_context else ""
    text = f"\n[{counted(document['tokens'], 'token')}{rate}{full}]"
    if document["text"] is None:
        text = ",".join(map(str, document["tokens"])) + text
    emit(options, lambda: document, lambda: text)
