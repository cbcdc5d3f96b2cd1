"""The steps of a trace that goes on where an earlier run was interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from lockstep.parity.dumps.steps import Chosen, Steps
from lockstep.parity.naming.names import matched
from lockstep.parity.prompt_cache.identity import identity
from lockstep.parity.resuming.going_on import GoingOn, going_on
from lockstep.parity.resuming.kept_sketches import KeptSketches
from lockstep.parity.resuming.kept_trace import KeptTrace
from lockstep.parity.resuming.later import now
from lockstep.parity.resuming.surroundings import surroundings
from lockstep.reference.checkpoint.errors import InputError, show

LAST = "logits"  # the stage behind which no other one goes on


def kept_trace(
    model: Any, path: str | Path, room: int, about: Mapping[str, Any],
    globs: Sequence[str] | None, decode: int, planned: Sequence[str], sketched: bool,
) -> KeptTrace:  # fmt: skip
    """Open a trace to go on with, or a new one if none was interrupted there.

    `planned` are the names of the taps of a step. `sketched`: of each a sketch is kept.
    Raises: InputError if what is there is of another run, or says what no such run has written.
    """
    run = {
        "journal": "lockstep trace", "version": 1, **about, "taps": globs, "decode": decode,
        "weights": identity(model), **surroundings(model.runs_on),
        **({"sketched": True} if sketched else {}),
    }  # fmt: skip
    file = (KeptSketches if sketched else KeptTrace)(path, room, run, **about)
    try:
        rows = len(about.get("batch", [[]]))
        check_fed(file, rows, decode, model.config.vocab_size)
        check_names(
            file, {name for name in planned if globs is None or matched(name, globs)}, decode
        )
    except BaseException:
        file.leave()
        raise
    return file


def check_fed(file: KeptTrace, rows: int, decode: int, vocabulary: int) -> None:
    """Raise InputError if a step would be fed what is no token of each row."""
    if len(file.fed) > decode:
        raise InputError(file.journal.path, f"feeds {len(file.fed)} steps, but there are {decode}")
    for fed in file.fed:
        if (
            type(fed) is not list
            or len(fed) != rows
            or not all(type(one) is int and 0 <= one < vocabulary for one in fed)
        ):
            what = f"feeds {show(fed, 40)}, which is no token for each row of the prompt"
            raise InputError(file.journal.path, what)


def check_names(file: KeptTrace, planned: Set[str], decode: int) -> None:
    """Raise InputError if a tensor that is kept is no tap of the run."""
    prefixes = {f"step.{step}" for step in range(1, decode + 1)}
    for name in file.kept:
        first, _, rest = str(name).partition("/")
        if name not in planned and not (first in prefixes and rest in planned):
            raise InputError(
                file.journal.path, f"holds {show(name, 60)}, which is no tap of this run"
            )


class Resumed(Steps):
    """Steps of which those that are in the file are not made again.

    With `some` the file has some tokens of the prompt alone.
    """

    def __init__(
        self, model: Any, file: KeptTrace, globs: Sequence[str] | None, decode: int, *, some: bool
    ):
        self.file, self.chosen, self.decode = file, Chosen(file, globs), decode
        self.some, self.sketched = some, isinstance(file, KeptSketches)
        self.here = GoingOn(file, self.chosen, model.put)
        self.here.there = not file.begun
        super().__init__(model if self.here.there else going_on(model, self.here))

    def begin(self, step: int) -> None:
        self.here.lazy = step == self.decode and not self.chosen.caches
        self.here.behind = []
        self.here.partial = self.sketched or (self.some and step == 0)

    def done(self, stage: str, value: Any) -> None:
        """Keep what goes from layer to layer, where no tap of it is written whole.

        What was put off is made at the latest here, unless a file has it: or all layers in one.
        """
        if stage == LAST or (self.chosen.chooses(stage) and not self.here.partial):
            return
        if self.here.there:
            self.file.put_stream(stage, now(value))
        elif self.file.stream is None:
            now(value)
        else:
            self.here.behind.append(value)

    def fed(self, step: int, logits: Any, last: Sequence[int]) -> list[int]:
        if step < len(self.file.fed):
            return self.file.fed[step]
        chosen = super().fed(step, now(logits), last)
        self.file.put_fed(chosen)
        return chosen

    def said(self) -> dict[str, Any]:
        """Say how many taps were there, and how many products were made again behind them."""
        if not self.file.begun:
            return {}
        return {"resumed": {"taps": self.file.before, "again": self.here.again}}
