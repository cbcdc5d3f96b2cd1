"""WeDLM's decoder, step by step, on a model that is unsure by a script.

    python -m lockstep.parity.demo.wedlm --threshold none

The token at position p is always 100 + p, and how unsure the model is of it goes by the last digit
of p. So every step can be followed by hand: docs/decoding/diffusion.md does.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.parity.cli.arguments import number, whole
from lockstep.parity.cli.boundary import guarded
from lockstep.parity.decoders.request import Request
from lockstep.parity.decoders.wedlm import Wedlm, add_arguments, diffusion_of
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.held_positions import HeldPositions

ENTROPIES = (0.1, 0.9, 0.3, 0.35, 0.8, 0.2, 0.5, 0.05, 0.6, 0.39)  # in nats, by the last digit
FIRST, VOCABULARY, MASK = 100, 256, 255
COLDEST = 1e-307  # of temperatures: the script's logits, divided by a lower one, may overflow
PROMPT = (1, 2, 3)


class Scripted:
    """Stands for a model: of position p it says token 100 + p, with the entropy of the script."""

    checkpoint = SimpleNamespace(path=Path("script"))
    runs_on = "reference"
    config = SimpleNamespace(num_hidden_layers=1, max_position_embeddings=100)

    def __init__(self, entropies: Sequence[float] = ENTROPIES):
        self.entropies = entropies

    def make_cache(self) -> Any:
        positions = HeldPositions()
        return SimpleNamespace(positions=positions, trim=positions.trim, arrays=list)

    def stages(self, tokens: Any, *, cache: Any) -> Iterator[tuple[str, Any]]:
        places = cache.positions.next(1)[:, None] + np.arange(len(tokens[0]))
        cache.positions.extend(places)
        yield from (("embed_tokens", None), ("layer", None), ("logits", self.logits(places)))

    def forward(self, tokens: Any, *, cache: Any, positions: Any, reordered: bool) -> np.ndarray:
        cache.positions.extend(positions)
        return self.logits(positions)

    def logits(self, positions: np.ndarray) -> np.ndarray:
        rows = [
            unsure(FIRST + place, self.entropies[place % len(self.entropies)])
            for place in positions[0].tolist()
        ]
        return np.array([rows])


@cache
def unsure(token: int, entropy: float) -> np.ndarray:
    """Return logits whose best is `token` and whose softmax has this entropy: by halving.

    All other tokens share what the best one leaves; the more that is, the more unsure.
    """
    low, high, rest = 0.0, 0.5, 0.25
    for _ in range(100):
        found = -(1 - rest) * np.log1p(-rest) - rest * np.log(rest / (VOCABULARY - 1))
        low, high = (rest, high) if found < entropy else (low, rest)
        rest = (low + high) / 2
    logits = np.full(VOCABULARY, np.log(rest / (VOCABULARY - 1)))
    logits[token] = np.log1p(-rest)
    return logits


def check_heat(heat: float) -> None:
    """Raises: InputError if logits divided by this may be no numbers any more."""
    if heat < COLDEST:
        what = f"{heat}, but should be at least {COLDEST}, which the tempered penalty divides by"
        raise InputError("--temperature", what)


def written(options: Namespace) -> Wedlm:
    """Let the decoder write, and return it: it knows what each step did."""
    options.window = 4 if options.window is None else options.window
    greedy = SamplingOptions()
    diffusion = diffusion_of(options, MASK, options.temperature)
    check_heat(diffusion.heat)
    decoder = Wedlm(diffusion, greedy, steps=True)
    model = Scripted()
    request = Request(
        model, list(PROMPT), options.max_tokens, (), greedy, iter(()), model.make_cache()
    )
    list(decoder.tokens(request))
    return decoder


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m lockstep.parity.demo.wedlm", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--max-tokens", metavar="N", type=whole, default=8)
    parser.add_argument(
        "--temperature", metavar="T", type=number, default=1.0,
        help="what the entropy of --penalty tempered is taken at; tokens are the likeliest",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    return guarded(lambda: print_counts(written(options)))


def print_counts(decoder: Wedlm) -> int:
    counts = decoder.counts()
    print(decoder.table())
    print(f"\n{counts['forwards']} forward passes, {counts['fed']} tokens fed, {decoder.said()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
