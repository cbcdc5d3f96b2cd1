"""A draft that runs ahead of a model: what each of them reads, and from what they choose.

Read it downwards: `generate`, `Target`, `ModelDraft`. The rounds are in `speculating.py`; what is
kept of a draft is decided by the package's `verified`.
Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length, steady_length
from lockstep.reference.scheduling.feeding import Watch, check_prompt
from lockstep.reference.scheduling.host import Choose, Host, attempt, chosen
from lockstep.reference.scheduling.reader import Reader
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.speculating import Speculated, agreed, speculate
from lockstep.reference.stores.kinds import ROTATING, TURBO_BITS

PLAIN = "float32"  # activations that are multiplied as they are


class Draft(Protocol):
    """What runs ahead. `shares` are the distributions (V,) that the last tokens were drawn from.

    `prompt`, which `generate` sets, is how many tokens of the text were there before: some engines'
    penalties do not count these.
    """

    shares: list[Any]
    prompt: int

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may come next."""
        ...


@dataclass
class Rules:
    """What a package has of its own: how results come to hand, and all that rounds."""

    host: Host
    greedy: Choose
    probabilities: Callable[[Any, SamplingOptions, Sequence[int], int], Any]
    verified: Callable[[Sequence[int], Sequence[Any], Sequence[Any], Iterator[float]], list[int]]
    drawn: Callable[[Any, Iterator[float]], int]


def generate(
    model: Any,
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
    rules: Rules,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `tokens` is the whole text; `cache` may hold its first tokens already. `draft` proposes up to
    `draft_tokens` at a time. A number is taken from `uniforms` only where chance decides: for each
    token that is drawn, and for a drafted one that may be kept or not. The other arguments are
    those of `autoregressive.generate`; `counts` is counted up. `rules` are the package's.
    Raises: InputError if there is no token to begin with, or the cache is of a kind with which a
    draft would change the text, or the model rounds activations so that it would.
    """
    check_prompt(model, tokens)
    check_activations(getattr(getattr(model, "backend", None), "activations", PLAIN))
    cache = model.make_cache() if cache is None else cache
    check_kind(cache.name)
    draft.prompt = len(tokens)
    held = tokens[: cache.positions.length]
    reader = Reader(model, cache, held, host=rules.host, chunk=chunk, watch=watch)
    text = list(tokens)
    try:
        yield from speculate(
            text,
            propose=draft.propose,
            judge=Target(reader, draft, sampling, uniforms, rules).judge,
            draft_tokens=draft_tokens,
            max_tokens=max_tokens,
            longest=steady_length(model.config),
            stop=stop,
            counts=Speculated() if counts is None else counts,
        )
    finally:
        reader.settle(text)


def check_kind(kind: str | None) -> None:
    """Raises: InputError for a cache with which a draft would change the text, or be stuck."""
    if kind in ROTATING:
        what = f"{kind} drops what is needed again where a draft is not kept"
        raise InputError("speculative decoding", what)
    if kind in TURBO_BITS:
        what = f"{kind} codes what is not new, and a draft comes with more that is new"
        raise InputError("speculative decoding", what)


def check_activations(name: str) -> None:
    """Raises: InputError for what rounds by how many tokens a pass has: a draft would show."""
    if name != PLAIN:
        what = f"activations in {name} do not go with it: it may change no token"
        raise InputError("speculative decoding", what)


class Target:
    """The model whose text it is."""

    def __init__(
        self,
        reader: Reader,
        draft: Draft,
        sampling: SamplingOptions,
        uniforms: Iterator[float],
        rules: Rules,
    ):
        self.reader, self.draft, self.sampling, self.uniforms = reader, draft, sampling, uniforms
        self.rules = rules

    def judge(self, text: list[int], drafted: list[int]) -> list[int]:
        """Return the drafted tokens that are kept, and one more, from one forward pass.

        Where the logits behind a drafted token are no numbers, it is the last that is returned, if
        it is kept. Only logits that a text without a draft comes to are an error.
        """
        found = self.looked_at(text, drafted)
        if isinstance(found, InputError) and drafted:  # a NaN may have spoilt rows before its own
            found = self.looked_at(text, [])
        if isinstance(found, InputError):
            raise found
        if self.sampling.is_argmax:
            return agreed(drafted, found)
        rows, shares = len(found), self.draft.shares
        if rows > len(drafted):
            return self.rules.verified(drafted, shares, found, self.uniforms)
        nobody = np.eye(1, len(found[0]))[0]  # takes no number, and is cut off again
        made = self.rules.verified(drafted[:rows], shares, [*found, nobody], self.uniforms)
        return made[:rows]

    def looked_at(self, text: list[int], drafted: list[int]) -> list[Any] | InputError:
        """Return what would be chosen after each token, or the distributions (V,) of that.

        They end before the first that cannot be had. If none can, the error that says why.
        """
        whole, model, rules = [*text, *drafted], self.reader.model, self.rules
        logits = self.reader.read(whole, rows=len(drafted) + 1)
        found: Sequence[Any]
        if self.sampling.is_argmax:
            found = rules.host.choices(model, logits, [rules.greedy] * (len(drafted) + 1))
        else:
            found = [
                attempt(partial(self.shares_of, seen=whole[: len(text) + place]), row)
                for place, row in enumerate(rules.host.brought(model, logits))
            ]
        good = list(takewhile(lambda one: not isinstance(one, InputError), found))
        return good or found[0]

    def shares_of(self, logits: Any, *, seen: list[int]) -> Any:
        """Return the distribution (V,) of the token after `seen`."""
        return self.rules.probabilities(logits, self.sampling, seen, self.draft.prompt)


class ModelDraft:
    """A smaller model with the same tokens. What it has read it keeps in a cache of its own.

    `reader` is that of an earlier draft of the same model, whose cache is gone on with.
    """

    def __init__(
        self,
        model: Any,
        *,
        vocabulary: int,
        sampling: SamplingOptions,
        uniforms: Iterator[float],
        chunk: int | None = None,
        watch: Watch | None = None,
        reader: Reader | None = None,
        rules: Rules,
    ):
        if reader is None:
            reader = Reader(model, model.make_cache(), host=rules.host)
        reader.chunk, reader.watch = chunk, watch
        self.reader, self.rules = reader, rules
        self.vocabulary, self.sampling, self.uniforms = vocabulary, sampling, uniforms
        self.shares: list[Any] = []
        self.prompt = 0

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens of the draft's own text; none where it could not read it itself."""
        whole, self.shares = list(text), []
        config = self.reader.model.config
        fits = max(text) < config.vocab_size and len(text) + count <= context_length(config)
        for _ in range(count if fits else 0):
            whole.append(self.choose(self.reader.read(whole, rows=1), whole))
        return whole[len(text) :]

    def choose(self, logits: Any, seen: list[int]) -> int:
        """Choose from the last token's logits (1, V)."""
        model, rules = self.reader.model, self.rules
        if self.sampling.is_argmax:
            return chosen(rules.host, model, logits[:, : self.vocabulary], [rules.greedy])[0]
        row = fitted(rules.host.brought(model, logits)[0], self.vocabulary)
        self.shares.append(rules.probabilities(row, self.sampling, seen, self.prompt))
        return rules.drawn(self.shares[-1], self.uniforms)


def fitted(logits: np.ndarray, vocabulary: int) -> np.ndarray:
    """Cut the logits (V,) to the model's vocabulary, or fill them up with tokens never drafted.

    Builds of one family have different numbers of rows behind the same tokens.
    """
    cut = logits[:vocabulary]
    return np.pad(cut, (0, vocabulary - len(cut)), constant_values=-np.inf)
