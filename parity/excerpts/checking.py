"""The reference and a backend in lock step, of which some tokens are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.diffing.some_tokens import in_order
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.excerpts.head import cut, only
from lockstep.parity.excerpts.oracle import ExcerptOracle
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.judging.unheard import held_to_unheard, unheard
from lockstep.parity.replaying.cached import caches_behind
from lockstep.reference.checkpoint.errors import InputError


class SomeTokens:
    """Two sides that advance together; of each tap the tokens of an excerpt are kept, no others."""

    def __init__(self, reference: Any, port: Any, excerpt: Excerpt, padding: Padding | None):
        self.oracle, self.port = ExcerptOracle(reference, port.dtype, excerpt), port
        self.cache, self.excerpt = port.make_cache(), excerpt
        self.padding = None if padding is None else excerpt.padding
        self.notes = (f"of the prompt these are compared, and indices count them: {excerpt.which}",)

    @property
    def logits(self) -> np.ndarray:
        """The reference's, of each row's last token alone in the prompt: (B, 1, V)."""
        return np.asarray(self.oracle.logits)

    def stages(
        self, tokens: np.ndarray, step: int, placed: dict[str, Any], result: Result
    ) -> Iterator[tuple[str, list[Tap], list[str]]]:
        """Advance by one stage at a time: yield its name, its taps, and those missing."""
        prefix = f"step.{step}/" if step else ""
        made: dict[str, np.ndarray] = {}

        def trace(name: str, value: Any) -> None:
            whole = to_numpy(value)
            made[name] = whole if step else cut(self.excerpt, name, whole)

        quiet = unheard(self.port, tokens, self.cache) if step else None
        some = None if step else only(self.excerpt)
        theirs = self.port.stages(tokens, cache=self.cache, trace=trace, only=some, **placed)
        for stage in self.oracle.stages(tokens, step=step, **placed):
            if next(theirs, None) is None:
                what = f"its stages end before {stage.name}, which is compared next"
                raise InputError("port", what)
            behind = caches_behind(stage.name, self.cache)
            caches = {name: to_numpy(value) for name, value in behind}
            taps = self.judged(stage, made, caches, prefix, result)
            taps = held_to_unheard(taps, made, quiet)
            missing = stage.truth.keys() ^ made.keys()
            yield stage.name, taps, [prefix + name for name in sorted(missing)]
            made.clear()

    def judged(
        self, stage: Any, made: dict[str, Any], caches: dict[str, Any], prefix: str, result: Result
    ) -> list[Tap]:
        with np.errstate(all="ignore"):
            taps, instead = self.oracle.judge(stage, made, caches, prefix, self.padding)
            found, names = {tap.name: tap for tap in taps}, [*stage.truth, *stage.caches]
            return in_order(names, found, instead, made | caches, prefix, self.port.dtype,
                            self.padding, result)  # fmt: skip
