"""A draft runs ahead, the model keeps what it would have said itself: the same distribution.

Read it downwards: `generate`, `Target`, `verified`. The rounds are in `speculating.py`.
Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length, steady_length
from lockstep.reference.decoding.autoregressive import Watch
from lockstep.reference.decoding.reader import Reader
from lockstep.reference.decoding.sampling import greedy, probabilities
from lockstep.reference.model import Model
from lockstep.reference.shapes import Array
from lockstep.reference.tokenizer.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.speculating import Speculated, agreed, speculate


class Draft(Protocol):
    """What runs ahead. `shares` are the distributions (V,) that the last tokens were drawn from."""

    shares: list[Array]

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""
        ...


def generate(
    model: Model,
    tokens: Sequence[int],
    *,
    draft: Draft,
    draft_tokens: int,
    max_tokens: int,
    stop: Collection[int],
    sampling: SamplingOptions,
    uniforms: Iterator[float],
    cache: Any = None,
    chunk: int | None = None,
    watch: Watch | None = None,
    counts: Speculated | None = None,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `tokens` is the whole text; `cache` may hold its first tokens already. `draft` proposes up to
    `draft_tokens` at a time. A number is taken from `uniforms` only where chance decides: for each
    token that is drawn, and for a drafted one that may be kept or not. The other arguments are
    those of `autoregressive.generate`; `counts` is counted up.
    Raises: InputError if there is no token to begin with, or the cache cannot be trimmed.
    """
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")
    cache = model.make_cache() if cache is None else cache
    reader = Reader(model, cache, tokens[: cache.positions.length], chunk=chunk, watch=watch)
    text = list(tokens)
    try:
        yield from speculate(
            text,
            propose=draft.propose,
            judge=Target(reader, draft, sampling, uniforms).judge,
            draft_tokens=draft_tokens,
            max_tokens=max_tokens,
            longest=steady_length(model.config),
            stop=stop,
            counts=Speculated() if counts is None else counts,
        )
    finally:
        reader.settle(text)


class Target:
    """The model whose text it is."""

    def __init__(
        self, reader: Reader, draft: Draft, sampling: SamplingOptions, uniforms: Iterator[float]
    ):
        self.reader, self.draft, self.sampling, self.uniforms = reader, draft, sampling, uniforms

    def judge(self, text: list[int], drafted: list[int]) -> list[int]:
        """Return the drafted tokens that are kept, and one more, from one forward pass."""
        whole = [*text, *drafted]
        logits = self.reader.read(whole, rows=len(drafted) + 1)
        if self.sampling.is_argmax:
            return agreed(drafted, [greedy(row) for row in logits])
        shares = [
            probabilities(row, self.sampling, whole[: len(text) + place])
            for place, row in enumerate(logits)
        ]
        return verified(drafted, self.draft.shares, shares, self.uniforms)


def verified(
    drafted: Sequence[int],
    draft: Sequence[Array],
    target: Sequence[Array],
    uniforms: Iterator[float],
) -> list[int]:
    """Return the drafted tokens that are kept, and one that is drawn.

    A token d is kept with probability min(1, p(d) / q(d)), where q (V,) is what the draft drew it
    from and p (V,) what the model would have drawn from. Instead of the first that is not kept one
    is drawn from max(p - q, 0), scaled to 1; after the last, one from p: `target` has one more
    distribution than `draft`. Each token then has the distribution p, whatever q is.
    Rounding: in float64. Where p - q is 0 everywhere by rounding, p itself is drawn from.
    """
    for place, (token, q, p) in enumerate(zip(drafted, draft, target, strict=False)):
        kept = p[token] / q[token]
        if kept >= 1 or (kept > 0 and next(uniforms) < kept):
            continue
        rest = np.maximum(p - q, 0)
        return [*drafted[:place], drawn(rest if rest.any() else p, uniforms)]
    return [*drafted, drawn(target[len(drafted)], uniforms)]


def drawn(weights: Array, uniforms: Iterator[float]) -> int:
    """Return an id with the probability of its weight (V,). A single one takes no number."""
    ids = np.flatnonzero(weights)
    if len(ids) == 1:
        return int(ids[0])
    sums = np.cumsum(weights[ids])
    place = np.searchsorted(sums, next(uniforms) * sums[-1], side="right")
    return int(ids[min(place, len(ids) - 1)])


class ModelDraft:
    """A smaller model with the same tokens. What it has read it keeps in a cache of its own."""

    def __init__(
        self,
        model: Model,
        *,
        vocabulary: int,
        sampling: SamplingOptions,
        uniforms: Iterator[float],
        chunk: int | None = None,
        watch: Watch | None = None,
    ):
        self.reader = Reader(model, model.make_cache(), chunk=chunk, watch=watch)
        self.vocabulary, self.sampling, self.uniforms = vocabulary, sampling, uniforms
        self.shares: list[Array] = []

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens of the draft's own text; none where it could not read it itself."""
        whole, self.shares = list(text), []
        config = self.reader.model.config
        fits = max(text) < config.vocab_size and len(text) + count <= context_length(config)
        for _ in range(count if fits else 0):
            logits = fitted(self.reader.read(whole, rows=1)[0], self.vocabulary)
            whole.append(self.choose(logits, whole))
        return whole[len(text) :]

    def choose(self, logits: Array, seen: list[int]) -> int:
        if self.sampling.is_argmax:
            return greedy(logits)
        self.shares.append(probabilities(logits, self.sampling, seen))
        return drawn(self.shares[-1], self.uniforms)


def fitted(logits: Array, vocabulary: int) -> Array:
    """Cut the logits (V,) to the model's vocabulary, or fill them up with tokens never drafted.

    Builds of one family have different numbers of rows behind the same tokens.
    """
    cut = logits[:vocabulary]
    return np.pad(cut, (0, vocabulary - len(cut)), constant_values=-np.inf)
