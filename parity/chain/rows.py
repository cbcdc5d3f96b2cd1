"""The logits that each choice was made from: the port's own where it dumped them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from lockstep.parity.chain.said import Said
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.names import parted, step_of, tap_named
from lockstep.reference.model import Model

MOST = 256  # choices that are judged
Rows = list[np.ndarray | None]  # (V,) in float64, None where there is none


class OwnRows:
    """The rows of a dump: the prompt's last, and that of each step. `before` is the one before."""

    own = True

    def __init__(
        self, dump: Dump, vocabulary: int, *, mapped: Mapping[str, str], cap: float | None
    ):
        self.dump, self.vocabulary, self.cap = dump, vocabulary, cap
        self.names, self.uncapped = names_of(dump, mapped)
        self.prompt = self.of(0, last=2)

    def of(self, step: int, *, last: int) -> np.ndarray:
        """Return the last rows that a step has, (n, V), none if they were not dumped.

        No more than so many are read: a long prompt's are gigabytes.
        """
        nothing = np.zeros((0, self.vocabulary))
        if step not in self.names:
            return nothing
        tensor = self.dump.parts(self.names[step])
        if tensor.shape[-1:] != (self.vocabulary,) or tensor.dtype.kind in "iubc":
            return nothing
        start = max(0, tensor.size - last * self.vocabulary)
        some = tensor.read(start, tensor.size, None)
        rows = some.reshape(-1, self.vocabulary).astype(np.float64)
        if self.cap is None or step not in self.uncapped:
            return rows
        return self.cap * np.tanh(rows / self.cap)

    def rows(self, fed: Sequence[int]) -> tuple[Rows, np.ndarray | None]:
        """Return the row of each choice, and what stands before the prompt's last."""
        before = self.prompt[-2] if len(self.prompt) > 1 else None
        return [*self.last], before

    @cached_property
    def last(self) -> Rows:
        """The last row of the prompt and of each step, read once."""
        steps = range(1, min(max(self.names, default=0), MOST - 1) + 1)
        return [last_of(self.prompt), *(last_of(self.of(step, last=1)) for step in steps)]


class ReferenceRows:
    """The rows of the reference, which is run on what the port was fed."""

    own = False

    def __init__(self, model: Model, tokens: Sequence[int]):
        self.model, self.tokens = model, [*tokens]
        self.begin()

    def begin(self) -> None:
        """Feed the prompt, all but its last token, and then that."""
        self.cache, self.fed = self.model.make_cache(), []
        first = [self.step(self.tokens[:-1])] if len(self.tokens) > 1 else []
        self.before = next(iter(first), None)
        self.found = [self.step(self.tokens[-1:])]

    def step(self, tokens: Sequence[int]) -> np.ndarray:
        logits = self.model.forward([[*tokens]], cache=self.cache, last_only=True)
        return np.asarray(logits)[0, -1].astype(np.float64)

    def rows(self, fed: Sequence[int]) -> tuple[Rows, np.ndarray | None]:
        """Return the rows behind the prompt and each fed token; what was fed before is not anew."""
        wanted = [*fed[: MOST - 1]]
        shared = min(len(wanted), len(self.fed))
        if wanted[:shared] != self.fed[:shared]:
            self.begin()
        for token in wanted[len(self.fed) :]:
            self.found.append(self.step([token]))
            self.fed.append(token)
        return [*self.found[: len(wanted) + 1]], self.before


def last_of(rows: np.ndarray) -> np.ndarray | None:
    """Return a copy, so that the other rows need no memory; None if there is no row."""
    return rows[-1].copy() if len(rows) else None


def names_of(dump: Dump, mapped: Mapping[str, str]) -> tuple[dict[int, str], set[int]]:
    """Return the name of the logits in each step, and the steps in which `lm_head` stands for them.

    A softcap is behind lm_head. `mapped` gives the taps of names that a map file told.
    """
    found: dict[int, str] = {}
    heads: set[int] = set()
    for wanted in ("lm_head", "logits"):
        for name in dump.shapes:
            tap = mapped.get(name) or tap_named(name)
            if parted(tap)[1] == wanted:
                found[step_of(tap)] = name
                (heads.add if wanted == "lm_head" else heads.discard)(step_of(tap))
    return found, heads


def rows_for(
    model: Model, dump: Dump, said: Said, mapped: Mapping[str, str]
) -> OwnRows | ReferenceRows:
    """Return the port's own rows if it dumped its prompt's, else the reference's."""
    cap = getattr(model.config, "final_logit_softcapping", None)
    own = OwnRows(dump, model.config.vocab_size, mapped=mapped, cap=cap)
    return own if len(own.prompt) else ReferenceRows(model, said.tokens or [])
