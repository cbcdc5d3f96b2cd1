"""The steps of a trace that goes on where an earlier run was interrupted."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import __version__
from lockstep.parity.dumps.crew import cores
from lockstep.parity.dumps.steps import Chosen, Steps
from lockstep.parity.prompt_cache.identity import identity
from lockstep.parity.resuming.going_on import GoingOn, going_on
from lockstep.parity.resuming.kept_trace import KeptTrace
from lockstep.parity.resuming.later import now

LAST = "logits"  # the stage behind which no other one goes on


def kept_trace(
    model: Any, path: str | Path, room: int, about: Mapping[str, Any],
    globs: Sequence[str] | None, decode: int,
) -> KeptTrace:  # fmt: skip
    """Open a trace to go on with, or a new one if none was interrupted there."""
    run = {
        "journal": "lockstep trace", "version": 1, **about, "taps": globs, "decode": decode,
        "weights": identity(model), **surroundings(model),
    }  # fmt: skip
    return KeptTrace(path, room, run, **about)


def surroundings(model: Any) -> dict[str, Any]:
    """Return on what else the bits of a run may depend."""
    found = {"lockstep": __version__, "numpy": np.__version__, "machine": platform.machine(),
             "threads": int(os.environ.get("OMP_NUM_THREADS") or cores())}  # fmt: skip
    if model.runs_on == "mlx":
        from importlib.metadata import version

        import mlx.core as mx

        found |= {"mlx": version("mlx"), "device": str(mx.default_device())}
    if model.runs_on == "cpu":
        from lockstep.fast import kernels

        found |= {"kernels": kernels.available()}
    return found


class Resumed(Steps):
    """Steps of which those that are in the file are not made again."""

    def __init__(self, model: Any, file: KeptTrace, globs: Sequence[str] | None, decode: int):
        self.file, self.chosen, self.decode = file, Chosen(file, globs), decode
        self.here = GoingOn(file, model.put)
        self.here.there = not file.before
        super().__init__(model if self.here.there else going_on(model, self.here))

    def begin(self, step: int) -> None:
        self.here.lazy = step == self.decode and not self.chosen.caches

    def done(self, stage: str, value: Any) -> None:
        """Keep what goes from layer to layer, where no tap of it is written.

        What was put off is made at the latest here, unless a file has it: or all layers in one.
        """
        if stage == LAST or self.chosen.chooses(stage):
            return
        if self.here.there:
            self.file.put_stream(stage, now(value))
        elif self.file.stream is None:
            now(value)

    def fed(self, step: int, logits: Any, last: Sequence[int]) -> list[int]:
        if step < len(self.file.fed):
            return self.file.fed[step]
        chosen = super().fed(step, now(logits), last)
        self.file.put_fed(chosen)
        return chosen

    def said(self) -> dict[str, Any]:
        """Say how many taps were there, and how many products were made again behind them."""
        if not self.file.before:
            return {}
        return {"resumed": {"taps": self.file.before, "again": self.here.again}}
