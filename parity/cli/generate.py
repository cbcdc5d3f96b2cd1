"""Continue a prompt, greedily or sampled, and print the text as it is made.

Random numbers come from a seed or a file, and every backend turns them into tokens by the same
rules, in this order: logit bias, penalties, temperature, top-k, top-p, min-p, typical. Another
engine's order and rules: --semantics.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_model, add_prompt
from lockstep.parity.cli.cached import CacheFiles, add_cache_files
from lockstep.parity.cli.experts import report_of_experts, said_of_experts
from lockstep.parity.cli.ranks import (
    add_ranks,
    check_options,
    said_of,
    start_ranks,
    starts_ranks,
    traffic_of,
    while_together,
)
from lockstep.parity.cli.writing import CACHES, Writing, add_thinking, add_writing, summary

HELP = "continue a prompt"
EXAMPLE = """\
  lockstep generate MODEL --prompt "What is 2+2?" --chat --backend fast
  lockstep generate MODEL --prompt "1, 2, 3" --stop "10" --prefill-chunk 512
  lockstep generate MODEL --prompt "Once" --save-cache once.safetensors
  lockstep generate MODEL --prompt "Once more" --load-cache once.safetensors
  lockstep generate MODEL --prompt "1, 2, 3" --backend cpu --activations int8
  lockstep generate MODEL --prompt "1, 2, 3" --decoder speculative --draft SMALLER
  lockstep generate MODEL --tokens 1,2,3 --temperature 0.8 --top-p 0.9 --semantics llama.cpp
  lockstep generate MODEL --prompt "1, 2, 3" --expert-budget 2GB
  lockstep generate MODEL --prompt "1, 2, 3" --tensor-parallel 2
  lockstep generate MODEL --prompt "Count to ten." --chat --decoder wedlm --threshold 0.3"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_prompt(parser)
    parser.add_argument("--chat", action="store_true", help="as a user's turn in the chat template")
    add_thinking(parser)
    add_writing(parser, max_tokens=256, caches=CACHES)
    add_cache_files(parser)
    add_ranks(parser)


def run(options: Namespace) -> int:
    import time

    from lockstep.parity.cli.loading import prompt_tokens
    from lockstep.parity.cli.output import emit
    from lockstep.parity.cli.speech import Speech
    from lockstep.reference.checkpoint.errors import InputError

    if options.chat and options.prompt is None:
        raise InputError("--chat", "goes with --prompt: token ids are taken as they are")
    if options.thinking is not None and not options.chat:
        raise InputError("--thinking", "goes with --chat: only a chat template knows of it")
    check_options(options)
    writing = Writing(options)
    files = CacheFiles(options, writing.decoder)
    begin = time.perf_counter()
    tokens = prompt_tokens(options, writing.checkpoint)
    taken = None if options.prompt is None else time.perf_counter() - begin
    if starts_ranks(options):
        return start_ranks(options, writing.checkpoint)
    with while_together(options):
        generation = writing.generation(chat=options.chat)
        cache = files.begin(generation, tokens, options.max_tokens)
        with Speech(quiet=options.json == "-") as speech:
            document = generation.run(
                tokens, options.max_tokens, speech, tokenize_s=taken, cache=cache
            )
    files.end(generation, tokens, document["tokens"])
    experts = report_of_experts(generation.model)
    traffic = traffic_of(generation.model, len(tokens) + len(document["tokens"]) - 1)
    more = {"cached_tokens": files.taken, "experts": experts, "tensor_parallel": traffic or None}
    document |= {name: value for name, value in more.items() if value is not None}
    phrases = [files.said(len(tokens)), generation.decoder.said(), said_of_experts(experts),
               said_of(traffic)]  # fmt: skip
    said = ", ".join(filter(None, phrases))
    text = f"\n{steps_of(generation.decoder)}{summary(document, said)}"
    if document["text"] is None:
        text = ",".join(map(str, document["tokens"])) + text
    emit(options, lambda: document, lambda: text)
    return 0


def steps_of(decoder: Any) -> str:
    """Return what each step did, of a decoder that was asked to tell."""
    table = getattr(decoder, "table", str)()
    return f"\n{table}\n\n" if table else ""
