"""A run over whole prompts, of which some tokens are kept; long prompts go a part at a time.

The reference makes a matrix of scores, queries by keys, for each head: of 32,768 tokens that would
be 4 GB a head. So where it would be too large the prompt is fed in parts, as `--prefill-chunk` does
it, and of each part the tokens that are asked for are kept. Scores of later tokens are not made
then, and no tap over keys is kept. Logits are made of the kept tokens alone, and of the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.excerpts.beginning import BY_LENGTH
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.excerpts.head import cut, only
from lockstep.parity.judging.padding import BY_HEAD, OVER_KEYS

SCORES = 1 << 27  # bytes of all scores of a layer, in float32
Taps = dict[str, np.ndarray]
Trace = Callable[[str, Any], None]


@dataclass(frozen=True)
class WholeRun:
    """A model, its cache, and the tokens that are kept of its prompt."""

    model: Any
    cache: Any
    excerpt: Excerpt

    def stages(
        self, tokens: np.ndarray, *, lengths: Any = None, positions: Any = None
    ) -> Iterator[tuple[str, Any, Taps]]:
        """Yield each stage's name, its value of the last part, and its taps of the kept tokens.

        The value of the logits is that of each prompt's last token, (B, 1, V).
        """
        size = self.part_of(tokens)
        if size >= tokens.shape[1]:
            found: Taps = {}
            placed = {"lengths": lengths, "positions": positions}
            run = self.model.stages(
                tokens, cache=self.cache, trace=self.keeper(found, self.excerpt),
                only=only(self.excerpt), **placed,
            )  # fmt: skip
            for name, value in run:
                yield name, value[:, -1:] if name == "logits" else value, dict(found)
                found.clear()
            return
        every: dict[str, list[tuple[Any, Taps]]] = {}
        for start in range(0, tokens.shape[1], size):
            for name, value, taps in self.part(tokens, start, start + size, positions):
                every.setdefault(name, [])[:] = [(value, joined(every.get(name), taps))]
        for name, ((value, taps),) in every.items():
            yield name, value, taps

    def part(
        self, tokens: np.ndarray, start: int, stop: int, positions: Any
    ) -> Iterator[tuple[str, Any, Taps]]:
        """Feed a part of the prompt; a value is kept of the logits alone, for what comes next."""
        some, found = tokens[:, start:stop], Taps()
        (row,) = self.excerpt.rows
        places = tuple(place - start for place in row if start <= place < start + some.shape[1])
        here = Excerpt((places,), (some.shape[1],))
        keep = self.keeper(found, here, over_keys=False)
        own = None if positions is None else np.asarray(positions)[:, start:stop]
        run = self.model.stages(
            some, cache=self.cache, positions=own, trace=keep if places else None, only=only(here)
        )
        for name, value in run:
            yield name, value[:, -1:] if name == "logits" else None, dict(found)
            found.clear()

    def keeper(self, found: Taps, excerpt: Excerpt, *, over_keys: bool = True) -> Trace:
        def trace(name: str, value: Any) -> None:
            if over_keys or not name.endswith(OVER_KEYS):
                found[name] = cut(excerpt, name, to_numpy(value))

        return trace

    def part_of(self, tokens: np.ndarray) -> int:
        """Return how many tokens to feed at once. Two kinds of rope need them all."""
        config, (rows, length) = self.model.config, tokens.shape
        kind = getattr(getattr(config, "rope_scaling", None), "kind", None)
        if rows > 1 or kind in BY_LENGTH or self.model.runs_on != "reference":
            return length
        return max(SCORES // (4 * config.num_attention_heads * length), 1)


def joined(before: list[tuple[Any, Taps]] | None, taps: Taps) -> Taps:
    """Put the tokens of a part behind those of the parts before it."""
    if not before or not before[0][1]:
        return taps
    earlier = before[0][1]
    return earlier | {name: np.concatenate([earlier[name], x], axis=axis_of(name, x))
                      for name, x in taps.items()}  # fmt: skip


def axis_of(name: str, x: np.ndarray) -> int:
    return 2 if x.ndim == 4 and name.endswith(BY_HEAD) else 1
