"""Generate with any backend, and time it."""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any

from lockstep.parity.decoders.autoregressive import Autoregressive
from lockstep.parity.decoders.request import Decoder, Request
from lockstep.parity.generating.timing import Clock
from lockstep.parity.generating.tokenizer_once import tokenizer_once
from lockstep.parity.progress import Progress
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.stop_strings import StopStrings

STORED = {"BF16": "bfloat16", "F16": "float16"}


def own_dtype(checkpoint: Checkpoint, backend: str) -> str:
    """Return what to compute in when nobody says: the checkpoint's own dtype on MLX.

    The reference and the cpu backend use float32. So does MLX for packed weights on a CPU, where
    it would sum half precision in half precision.
    """
    if backend in ("reference", "cpu"):
        return "float32"
    from lockstep.fast.backends import has_gpu

    if backend == "fast" and not has_gpu():
        return "float32"
    if is_packed(checkpoint) and not has_gpu():
        return "float32"
    norm = next(name for name in checkpoint.names if len(checkpoint.stored(name).shape) == 1)
    return STORED.get(checkpoint.stored(norm).dtype, "float32")


def is_packed(checkpoint: Checkpoint) -> bool:
    return any(checkpoint.stored(name).packed for name in checkpoint.names)


class Generation:
    """A model, a decoder, a sampler and the text that comes out.

    `stop_ids` are ids that end a text beside the model's own, which `ignore_eos` lets pass;
    `stop_strings` are texts that do. `cache` is a kind of key/value cache, None the package's own
    choice. `chunk` is how many tokens of a prompt are read at a time, None all. `chat` means that
    the end of a turn ends a text, where ChatML stands in for a template.
    """

    def __init__(
        self,
        model: Any,
        sampling: SamplingOptions,
        uniforms: Iterator[float],
        *,
        ignore_eos: bool,
        cache: str | None = None,
        size: int | None = None,
        keep: int | None = None,
        recent: int | None = None,
        decoder: Decoder | None = None,
        stop_ids: Collection[int] = (),
        stop_strings: Sequence[str] = (),
        chunk: int | None = None,
        chat: bool = False,
    ):
        self.model, self.sampling, self.uniforms = model, sampling, uniforms
        self.cache, self.chunk, self.stop_strings = cache, chunk, stop_strings
        self.told = {"size": size, "keep": keep, "recent": recent}  # of some kinds of cache
        self.decoder = Autoregressive() if decoder is None else decoder
        self.context_is_full = False  # whether the last run ended because of that
        self.tokenizer = tokenizer_of(model.checkpoint)
        if chat:
            from lockstep.reference.tokenizer.chatml import with_template

            self.tokenizer = with_template(self.tokenizer)
        ends = model.checkpoint.generation.eos_token_ids | ends_of(self.tokenizer, self.decoder)
        self.stop = frozenset(stop_ids) | (frozenset() if ignore_eos else ends)

    def run(
        self,
        tokens: list[int],
        max_tokens: int,
        say: Callable[[str], None],
        *,
        tokenize_s: float | None = None,
        cache: Any = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Generate, telling `say` each new piece of text; return tokens, text and timings.

        The end-of-text token is counted and not shown. Without a tokenizer `text` is None. What
        does not fit the model's context is not generated. `cache` may hold the first of `tokens`
        already, and holds no more than the text at the end. `stopped` is asked after each stage of
        a forward pass whether to stop there, which may leave the last token of the cache half read.
        """
        room = self.room(tokens)
        limit = max(0, min(max_tokens, room))
        cache = self.made_cache(len(tokens) + limit) if cache is None else cache
        clock, text, made = Clock(tokenize_s), Text(self.tokenizer, self.stop_strings), []
        read = len(tokens) - cache.positions.length
        coming = self.tokens(tokens, limit, cache, clock, stopped)
        whole = self.written(coming, made, text, clock, say)
        text.finish(say)
        if self.decoder.in_order:
            cache.trim(max(0, cache.positions.length - len(tokens) - len(made)))
        ended = self.ended_by(made, text, full=room < max_tokens) if whole else "interrupted"
        self.context_is_full = ended == "context"
        return {
            "tokens": made,
            "text": text.whole,
            "prompt_tokens": len(tokens),
            "ended_by": ended,
            "decoder": self.decoder.counts(),
            "timings": clock.timings(read, from_prompt=self.decoder.from_prompt),
        }

    def written(
        self,
        coming: Generator[int, None, None],
        made: list[int],
        text: "Text",
        clock: Clock,
        say: Callable[[str], None],
    ) -> bool:
        """Take the tokens as they come; return whether nobody stopped them."""
        with suppress(Stopped), closing(coming):
            for token in coming:
                clock.token()
                made.append(token)
                if token not in self.stop:
                    text.push(token, say)
                if text.ended:
                    break
            return True
        return False

    def ended_by(self, made: list[int], text: "Text", *, full: bool) -> str:
        """Say why there is no more. `full` means that the context had not room for all."""
        if text.ended:
            return "stop string"
        if made and made[-1] in self.stop:
            return "stop id"
        return "context" if full else "max tokens"

    def tokens(
        self, tokens: list[int], limit: int, cache: Any, clock: Clock, stopped: Callable[[], bool]
    ) -> Generator[int, None, None]:
        """Yield the new token ids from the decoder.

        Until the first is there, progress is shown; then the text itself is.
        """
        new = len(tokens) - cache.positions.length
        parts = 1 if self.chunk is None else -(-new // self.chunk)
        progress = Progress((self.model.config.num_hidden_layers + 1) * parts + 1)
        request = Request(
            self.model,
            tokens,
            limit,
            self.stop,
            self.sampling,
            self.uniforms,
            cache,
            chunk=self.chunk,
            watch=partial(passed_on, progress, stopped),
            prompt_is_read=clock.prompt_is_read,
        )
        made = self.decoder.tokens(request)
        with progress:
            first = list(islice(made, 1))
        yield from first
        yield from made

    def fed(self, tokens: int) -> int:
        """Return for how many tokens of a text of so many a cache needs room."""
        return max(1, tokens - 1 + self.decoder.beyond)

    def longest(self, tokens: list[int], max_tokens: int) -> int:
        """Return how long a text may get: the prompt and what it may be gone on with."""
        return len(tokens) + max(0, min(max_tokens, self.room(tokens)))

    def room(self, tokens: list[int]) -> int:
        """Return how many tokens the context has room for behind these.

        One that comes out of the logits before it needs no position of its own to be made.
        """
        return context_length(self.model.config) - len(tokens) + self.decoder.from_prompt

    def made_cache(self, tokens: int) -> Any:
        """Return an empty cache that has room for a text: its last token is never fed."""
        room = self.fed(tokens) if self.cache == "preallocated" else None
        return self.model.make_cache(self.cache, room=room, **self.told)


def passed_on(progress: Progress, stopped: Callable[[], bool], stage: str) -> None:
    progress(stage)
    if stopped():
        raise Stopped


class Stopped(Exception):
    """Somebody wants no more of this text."""


class Text:
    """What a run has written: shown as it comes, up to a stop string. None without a tokenizer."""

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str]):
        self.stream = None if tokenizer is None else tokenizer.stream()
        self.stops = StopStrings(stop_strings)
        self.whole = None if tokenizer is None else ""

    @property
    def ended(self) -> bool:
        return self.stops.found is not None

    def push(self, token: int, say: Callable[[str], None]) -> None:
        """Take a token, and say what of the text is sure now."""
        if self.stream is not None:
            self.show(self.stops.push(self.stream.push(token)), say)

    def finish(self, say: Callable[[str], None]) -> None:
        """Say what was held back: half a character, or what might have become a stop string."""
        if self.stream is not None and not self.ended:
            self.show(self.stops.push(self.stream.finish()) + self.stops.finish(), say)

    def show(self, piece: str, say: Callable[[str], None]) -> None:
        self.whole = (self.whole or "") + piece
        say(piece)


def ends_of(tokenizer: Any, decoder: Decoder) -> frozenset[int]:
    """Return the ids that end a text by the tokenizer's files, and by the decoder's habit."""
    if tokenizer is None:
        return frozenset()
    found = [tokenizer.parts[0].token_to_id(text) for text in decoder.ends]
    return tokenizer.eos_token_ids | {one for one in found if one is not None}


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """Return the checkpoint's tokenizer, or None if it has none that can be read."""
    try:
        return tokenizer_once(checkpoint)
    except InputError:
        return None
