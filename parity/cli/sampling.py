"""The arguments that say how a token is chosen, and what they amount to."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import NUMBER, number, refusal, whole

if TYPE_CHECKING:
    from lockstep.reference.scheduling.sampling_options import SamplingOptions

ENGINES = ("lockstep", "llama.cpp", "transformers", "mlx-lm", "vllm", "ember", "wedlm")
BIAS = re.compile(rf"([0-9]{{1,18}}):({NUMBER.pattern}|-inf)")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--temperature", metavar="T", type=number, default=0.0, help="0, the default, is greedy"
    )
    parser.add_argument(
        "--top-k", metavar="K", type=whole, default=0, help="keep the K likeliest; 0 is off"
    )
    parser.add_argument(
        "--top-p", metavar="P", type=number, default=1.0,
        help="keep the fewest whose probability reaches P; 1 is off",
    )  # fmt: skip
    parser.add_argument(
        "--min-p", metavar="P", type=number, default=0.0,
        help="keep those of at least P times the best one's probability; 0 is off",
    )  # fmt: skip
    parser.add_argument(
        "--typical-p", metavar="P", type=number, default=1.0,
        help="keep the most typical whose probability reaches P; 1 is off",
    )  # fmt: skip
    add_penalties(parser)
    parser.add_argument(
        "--semantics", choices=ENGINES, metavar="ENGINE",
        help="whose order and rules: %(choices)s (default lockstep; wedlm for its decoder)",
    )  # fmt: skip


def add_penalties(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repetition-penalty", metavar="R", type=number, default=1.0,
        help="divide the logits of earlier tokens by R, or multiply those below 0; 1 is off",
    )  # fmt: skip
    for name, times in (("frequency", "each time a token was there"), ("presence", "once")):
        parser.add_argument(
            f"--{name}-penalty", metavar="X", type=number, default=0.0,
            help=f"subtract X from the logits of earlier tokens, {times}; 0 is off",
        )  # fmt: skip
    parser.add_argument(
        "--penalty-window", metavar="N", type=whole,
        help="how many earlier tokens the penalties see, the prompt's too (default: all, or as "
        "many as the ENGINE of --semantics has by itself)",
    )  # fmt: skip
    parser.add_argument(
        "--logit-bias", metavar="ID:X,...", type=biases, default=(),
        help="add X to the logit of token ID, at most 1e9 either way; -inf bans it",
    )  # fmt: skip


def biases(text: str) -> tuple[tuple[int, float], ...]:
    """Read pairs such as 5:1.5,7:-inf."""
    found = [BIAS.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise refusal(text, "a list of token ids and numbers such as 5:1.5,7:-inf")
    return tuple((int(one[1]), float(one[2])) for one in found if one)


def sampling_of(options: argparse.Namespace) -> SamplingOptions:
    """Return the sampler's settings. Raises: InputError that names the one that is wrong."""
    from lockstep.reference.scheduling.sampling_options import SamplingOptions

    return SamplingOptions(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
        repetition_penalty=options.repetition_penalty,
        frequency_penalty=options.frequency_penalty,
        presence_penalty=options.presence_penalty,
        penalty_window=options.penalty_window,
        logit_bias=options.logit_bias,
        semantics=options.semantics or "lockstep",
    )


def check_sampling(sampling: SamplingOptions, checkpoint: Any) -> None:
    """Refuse before a model is loaded what its vocabulary would refuse later."""
    from lockstep.reference.checkpoint.errors import InputError

    size = checkpoint.config.vocab_size
    most = sampling.rules.most_top_k(size)
    if sampling.temperature > 0 and sampling.top_k > most:
        what = f"top_k={sampling.top_k}, but {sampling.semantics} takes at most {most} here"
        raise InputError("sampling", what)
    for token, _ in sampling.logit_bias:
        if token >= size:
            what = f"token id {token}, but should be 0..{size - 1}"
            raise InputError("sampling", what, "logit_bias")
