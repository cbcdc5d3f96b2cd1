"""A run that goes on behind the taps that an earlier one has written.

The model runs from its first operation on, but each is put off; a tap that is in the file takes
the place of what was put off for it. So nothing is computed but what the next tap, or a cache,
needs and the file does not have: for any architecture, and from the middle of a layer too.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from lockstep.parity.dumps.steps import Chosen
from lockstep.parity.resuming.kept_trace import KeptTrace
from lockstep.parity.resuming.later import Later, LaterOps, now
from lockstep.parity.resuming.layout import laid_out

COSTLY = {"linear", "experts", "geglu_experts", "attention", "attention_scores",
          "attention_context"}  # fmt: skip


class GoingOn:
    """Which part of a run is behind us. `there` is true from the first tap on that is missing.

    What is `chosen` is in the file, or is to be. Where it is `partial`, some tokens or a sketch,
    no value can come from it: a run goes on from the stream then, from the last layer's end.
    With `lazy` caches are not filled before somebody asks: right for the last step alone. `again`
    counts products and attentions that were carried out before that.
    """

    def __init__(self, file: KeptTrace, chosen: Chosen, put: Any):
        self.file, self.chosen, self.put = file, chosen, put
        self.partial = False
        self.behind: list[Any] = []  # what layers of this step would have made, each in its turn
        self.there, self.lazy, self.again = False, False, 0

    def is_there(self) -> bool:
        return self.there

    def called(self, name: str) -> None:
        self.again += name in COSTLY

    def after(self, layers: int, make: Callable[[], Any]) -> Any:
        """Make what so many layers were to make, each in its turn and not within the next; then
        `make`. All of that is made again, wherever the run is now."""
        there, self.there = self.there, False
        try:
            for layer in range(layers):
                now(self.behind[layer])
                self.behind[layer] = None
            return make()
        finally:
            self.there = there

    def leaf(self, record: dict[str, Any]) -> Later:
        """Return a kept tensor as the run had it, to be read when it is needed."""
        return Later(lambda: laid_out(self.file.read(record), record.get("steps"), self.put))

    def kept(self, name: str) -> Later | None:
        """Return the value of a tap that an earlier run has written whole, None if it has not."""
        record, stream = self.file.record(name), self.file.stream
        if stream is not None and not self.there and stream["stream"] == self.file.prefix + name:
            self.there = True
            return self.leaf(stream)
        return None if record is None or self.partial else self.leaf(record)


def going_on(model: Any, here: GoingOn) -> Any:
    """Return a model that runs as `model` does, to the bit, without what is behind `here`."""
    other = copy(model)
    other.run = lambda **facts: run_from(model.run(**facts), here)
    return other


def run_from(run: Any, here: GoingOn) -> Any:
    """Return a run whose operations are put off, and whose taps come from the file."""
    facts = vars(run) | {
        "ops": LaterOps(run.ops, here.is_there, here.called),
        "cache": CacheLater(run.cache, run.ops, here),
    }
    kind = type("RunFrom", (TapsFrom, type(run)), {"here": here})
    return kind(**facts)


class TapsFrom:
    """What a run of a model does otherwise: it takes taps from the file, where it has them."""

    here: GoingOn
    trace: Any

    def tap(self, name: str, value: Any) -> Any:
        kept = self.here.kept(name)
        if kept is not None:
            return kept
        missing = self.here.file.record(name) is None
        if missing and self.trace is not None and self.here.chosen.chooses(name):
            self.here.there = True
            value = now(value)
            self.trace(name, value)
        return value


class CacheLater:
    """A cache that is filled now or, in the last step, if somebody looks at it."""

    def __init__(self, cache: Any, ops: Any, here: GoingOn):
        self._cache, self._ops, self._here = cache, ops, here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def reserve(self, ops: Any, layer: int, keys: Any, values: Any) -> None:
        """Return None: what is to be held may not be there yet."""

    def update(self, ops: Any, layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
        def filled() -> tuple[Any, Any]:
            return self._cache.update(self._ops, layer, now(keys), now(values))

        if self._here.there or not self._here.lazy:
            return filled()
        layers = len(self._here.behind)
        both = Later(lambda: self._here.after(layers, filled))
        return Later(lambda: both.now()[0]), Later(lambda: both.now()[1])
