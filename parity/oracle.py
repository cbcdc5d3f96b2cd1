"""Run the reference a stage at a time, and judge what a port made of each stage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.judge import Judgement, judge
from lockstep.parity.metrics import difference, distance, rms
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.parity.recorder import Recorder, Stage
from lockstep.parity.replay import Known, Replay
from lockstep.parity.result import Tap
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named


@dataclass(frozen=True)
class OracleStage:
    """What the reference made of one stage, with the graph that made it."""

    name: str
    recorded: Stage
    alive: frozenset[int]  # identities of the values that later stages can ask for


class Oracle:
    """The reference model with its recorder and its replays; `dtype` is that of the port.

    One oracle follows one sequence: the prefill and, with the same cache, the steps after it.
    """

    def __init__(self, model: Model, dtype: str):
        self.dtype = dtype_named(dtype)
        self.recorder = Recorder(model.ops)
        self.model = Model(
            model.checkpoint, dtype=model.dtype, ops=self.recorder, adapters=model.adapters
        )
        self.cache = self.model.make_cache()
        self.centre = Replay(exact(model.ops, self.dtype), FLOAT64)
        self.ways = [Replay(ops, kind) for ops, kind in ways(self.dtype)]
        self.first: list[np.ndarray] = []  # made before the layers: any layer may ask for it
        self.logits: np.ndarray | None = None

    def stages(self, tokens: Any, *, positions: Any = None) -> Iterator[OracleStage]:
        """Run the model over the tokens (B, L), going on from earlier ones."""
        earlier = frozenset(map(id, self.cache.arrays()))
        for replay in (self.centre, *self.ways):
            replay.forget_all_but(earlier)
        self.first = []
        for name, value in self.model.stages(
            tokens, cache=self.cache, positions=positions, trace=self.recorder.tap
        ):
            held = (*self.cache.arrays(), value)
            stage = self.recorder.take()
            self.first = self.first or [node.output for node in stage.nodes]
            yield OracleStage(name, stage, frozenset(map(id, (*held, *self.first))))
            self.logits = value

    @np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
    def judge(self, stage: OracleStage, port: Mapping[str, np.ndarray], prefix: str) -> list[Tap]:
        """Judge every tap of a stage that the port has, in the order of computation.

        A tap whose shape is not the reference's is judged on nothing else; one that is rightly
        empty is left out, since it compares nothing.
        """
        taps = stage.recorded.taps
        fitting = {name: port[name] for name in taps if shaped_alike(port.get(name), taps[name])}
        known: Known = {}
        centre = self.centre.stage(stage.recorded, fitting)
        spread = [way.stage(stage.recorded, fitting, known) for way in self.ways]
        for replay in (self.centre, *self.ways):
            replay.forget_all_but(stage.alive)
        operations = {id(node.output): node.op for node in stage.recorded.nodes}
        return [
            judged_tap(prefix + name, operations[id(truth)], port[name], truth, centre[name],
                       [way[name] for way in spread], self.dtype)
            if name in fitting
            else misshapen(prefix + name, operations[id(truth)], port[name], truth)
            for name, truth in taps.items()
            if name in port and (truth.size or name not in fitting)
        ]  # fmt: skip


def judged_tap(
    name: str,
    op: str | None,
    port: np.ndarray,
    truth: np.ndarray,
    centre: np.ndarray,
    spread: list[np.ndarray],
    dtype: np.dtype,
) -> Tap:
    """Put accumulated and own error side by side; `dtype` is the port's."""
    far, own = distance(port, truth), judge(port, centre, spread, dtype)
    inherited = rms(difference(centre, truth)) / (rms(truth.astype(np.float64)) or 1.0)
    return Tap(
        name=name,
        op=op,
        shape=port.shape,
        max_abs=far.max_abs,
        rms_rel=far.rms_rel,
        cosine=far.cosine,
        gain=far.gain,
        own_error=own.own_error,
        inherited_error=inherited,
        noise=own.noise,
        ratio=own.ratio,
        row_ratio=own.row_ratio,
        cell_ratio=own.cell_ratio,
        status="ok" if own.passed else "diverged",
        place=described(own, port, centre),
        histogram=far.histogram,
    )


def shaped_alike(port: np.ndarray | None, truth: np.ndarray) -> bool:
    return port is not None and port.shape == truth.shape


def misshapen(name: str, op: str, port: np.ndarray, truth: np.ndarray) -> Tap:
    """Report a tap whose shape alone is wrong; nothing is broadcast to make it fit."""
    place = f"shape {list(port.shape)}, but should be {list(truth.shape)}"
    return Tap(name=name, op=op, shape=port.shape, status="diverged", place=place)


def described(own: Judgement, port: np.ndarray, right: np.ndarray) -> str | None:
    """Say the first bad value and what it should be; and which measure failed, if not the ratio."""
    index = own.first_bad
    if index is None:
        return None
    said = f"first at {list(index)}: {port[index]:.6g}, but should be {right[index]:.6g}"
    if own.ratio > max(own.row_ratio, own.cell_ratio) / 100:  # then the ratio itself says enough
        return said
    return f"{said}; a row is {own.row_ratio:.3g} times its noise, a number {own.cell_ratio:.3g}"
