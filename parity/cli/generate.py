"""Continue a prompt, greedily or sampled, and print the text as it is made."""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_backend, add_model, add_prompt, number, whole

HELP = "continue a prompt"
EXAMPLE = '  lockstep generate MODEL --prompt "What is 2+2?" --chat --backend fast'


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser)
    add_backend(parser, default="fast", dtype="the checkpoint's on mlx, else float32")
    parser.add_argument("--max-tokens", metavar="N", type=whole, default=256)
    parser.add_argument("--temperature", metavar="T", type=number, default=0.0, help="0 is greedy")
    parser.add_argument("--top-k", metavar="K", type=whole, default=0, help="0 is off")
    parser.add_argument("--top-p", metavar="P", type=number, default=1.0, help="1 is off")
    parser.add_argument("--min-p", metavar="P", type=number, default=0.0, help="0 is off")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--seed", metavar="S", type=whole, default=0, help="of the uniforms")
    source.add_argument("--uniforms", metavar="FILE", help="numbers in [0, 1), one a token")
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the end of text")
    parser.add_argument("--chat", action="store_true", help="as a user's turn in the chat template")


def run(options: Namespace) -> int:
    from lockstep.parity.cli.loading import load, prompt_tokens
    from lockstep.parity.generating import Generation, own_dtype
    from lockstep.parity.uniforms import uniforms
    from lockstep.reference.tokenizer.sampling_options import SamplingOptions

    sampling = SamplingOptions(options.temperature, options.top_k, options.top_p, options.min_p)
    numbers = uniforms(options.uniforms, options.seed)
    dtype = options.dtype or own_dtype(options.model, options.backend, options.ignore_config)
    model = load(options, options.backend, dtype)
    tokens = prompt_tokens(options, model.checkpoint)
    generation = Generation(model, sampling, numbers, ignore_eos=options.ignore_eos)
    document = generation.run(tokens, options.max_tokens, listener(options))
    finish(options, document)
    return 0


def listener(options: Namespace) -> Any:
    """Print text as it comes, unless standard output is for the JSON."""
    from lockstep.parity.cli.output import printable

    if options.json == "-":
        return lambda text: None
    return lambda text: print(printable(text), end="", flush=True)


def finish(options: Namespace, document: dict[str, Any]) -> None:
    from lockstep.parity.cli.output import emit

    speed = document["timings"]["decode_tokens_per_second"]
    rate = f", {speed:.1f} tokens a second" if speed else ""
    text = f"\n[{len(document['tokens'])} tokens{rate}]"
    if document["text"] is None:
        text = ",".join(map(str, document["tokens"])) + text
    emit(options, lambda: document, lambda: text)
