"""Generate with any backend, and time it."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from lockstep.parity.progress import Progress
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.tokenizer.sampling_options import SamplingOptions

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
    """A model, a sampler and the text that comes out."""

    def __init__(
        self,
        model: Any,
        sampling: SamplingOptions,
        uniforms: Iterator[float],
        *,
        ignore_eos: bool,
        cache: str | None = None,
    ):
        self.cache = cache  # which kind of key/value cache; None is the package's own choice
        self.model, self.sampling, self.uniforms = model, sampling, uniforms
        self.context_is_full = False  # whether the last run ended because of that
        self.package = "fast" if hasattr(model, "backend") else "reference"
        self.tokenizer = tokenizer_of(model.checkpoint)
        own = self.tokenizer.eos_token_ids if self.tokenizer else frozenset()
        ends = model.checkpoint.generation.eos_token_ids | own
        self.stop: frozenset[int] = frozenset() if ignore_eos else ends

    def run(self, tokens: list[int], max_tokens: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Generate, telling `say` each new piece of text; return tokens, text and timings.

        The end-of-text token is counted and not shown. Without a tokenizer `text` is None. What
        does not fit the model's context is not generated.
        """
        context = context_length(self.model.config)
        room = context - len(tokens) + 1
        whole, max_tokens = room < max_tokens, min(max_tokens, room)
        stream = self.tokenizer.stream() if self.tokenizer else None
        made: list[int] = []
        pieces: list[str] = []
        clock = [time.perf_counter()]
        for token in self.tokens(tokens, max_tokens):
            clock.append(time.perf_counter())
            made.append(token)
            if stream is not None and token not in self.stop:
                pieces.append(stream.push(token))
                say(pieces[-1])
        if stream is not None:
            pieces.append(stream.finish())
            say(pieces[-1])
        ended = bool(made) and made[-1] in self.stop
        self.context_is_full = whole and len(made) == max_tokens and not ended
        text = None if stream is None else "".join(pieces)
        return {
            "tokens": made,
            "text": text,
            "prompt_tokens": len(tokens),
            "timings": timings(clock, len(tokens)),
        }

    def tokens(self, tokens: list[int], max_tokens: int) -> Iterator[int]:
        """Yield the new token ids from the package's own decoder and sampler.

        Until the first is there, progress is shown; then the text itself is.
        """
        if self.package == "reference":
            from lockstep.reference.decoding import sampling
            from lockstep.reference.decoding.autoregressive import generate
        else:
            from lockstep.fast.decoding import sampling
            from lockstep.fast.decoding.autoregressive import generate

        choose = sampling.greedy
        if not self.sampling.is_argmax:
            choose = sampling.Sampler(self.sampling, self.uniforms, tokens)
        progress = Progress(self.model.config.num_hidden_layers + 2)
        made = generate(
            self.model,
            tokens,
            max_tokens=max_tokens,
            stop=self.stop,
            choose=choose,
            cache=self.model.make_cache(self.cache, room=self.room(len(tokens) + max_tokens)),
            watch=progress,
        )
        with progress:
            first = list(islice(made, 1))
        yield from first
        yield from made

    def room(self, tokens: int) -> int | None:
        """Return how many tokens the cache has to be told of: the last one is never fed."""
        return max(1, tokens - 1) if self.cache == "preallocated" else None


def timings(clock: list[float], prompt: int) -> dict[str, float | None]:
    """Return seconds to the first token, and tokens a second of prefill and of decoding."""
    if len(clock) < 2:
        return dict.fromkeys(
            ["first_token_s", "prefill_tokens_per_second", "decode_tokens_per_second", "total_s"]
        )
    first, rest = clock[1] - clock[0], clock[-1] - clock[1]
    return {
        "first_token_s": first,
        "prefill_tokens_per_second": prompt / first if first else None,
        "decode_tokens_per_second": (len(clock) - 2) / rest if rest else None,
        "total_s": clock[-1] - clock[0],
    }


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """Return the checkpoint's tokenizer, or None if it has none that can be read."""
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    try:
        return load_tokenizer(checkpoint.path)
    except InputError:
        return None
