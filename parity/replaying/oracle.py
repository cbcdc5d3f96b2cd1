"""Run the reference a stage at a time, and judge what a port made of each stage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.excerpts.blocks import Blocks
from lockstep.parity.judging.judge import Judgement, judge
from lockstep.parity.judging.metrics import difference, distance, rms
from lockstep.parity.judging.padding import Padding, rows_named
from lockstep.parity.judging.result import Tap
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.parity.replaying.cached import caches_behind
from lockstep.parity.replaying.recorder import Recorder, Stage
from lockstep.parity.replaying.replay import Known, Replay
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

    One oracle follows one sequence: the prefill and, with the same cache, the steps after it. With
    `caches` what these hold behind a layer are taps too. With `block` scores are made of so many
    queries at a time, and cannot be judged.
    """

    def __init__(self, model: Model, dtype: str, *, caches: bool = False, block: int | None = None):
        self.dtype, self.caches, self.block = dtype_named(dtype), caches, block

        def blocked(ops: Any) -> Any:
            return ops if block is None else Blocks(ops, block)

        self.recorder = Recorder(blocked(model.ops))
        self.model = Model(
            model.checkpoint, dtype=model.dtype, ops=self.recorder, adapters=model.adapters
        )
        self.cache = self.model.make_cache()
        self.centre = Replay(blocked(exact(model.ops, self.dtype)), FLOAT64)
        self.ways = [Replay(blocked(ops), kind) for ops, kind in ways(self.dtype)]
        self.first: list[np.ndarray] = []  # made before the layers: any layer may ask for it
        self.logits: np.ndarray | None = None

    def stages(
        self, tokens: Any, *, positions: Any = None, lengths: Any = None
    ) -> Iterator[OracleStage]:
        """Run the model over the tokens (B, L), going on from earlier ones.

        `lengths` (B,) says how many of each row are real, where rows are filled up.
        """
        earlier = frozenset(map(id, self.cache.arrays()))
        for replay in (self.centre, *self.ways):
            replay.forget_all_but(earlier)
        self.first = []
        for name, value in self.model.stages(
            tokens, cache=self.cache, positions=positions, lengths=lengths,
            trace=self.recorder.tap,
        ):  # fmt: skip
            held = (*self.cache.arrays(), value)
            stage = self.recorder.take()
            if self.caches:
                made = {id(node.output) for node in stage.nodes}
                behind = caches_behind(name, self.cache)
                stage.taps |= {tap: array for tap, array in behind if id(array) in made}
            self.first = self.first or [node.output for node in stage.nodes]
            yield OracleStage(name, stage, frozenset(map(id, (*held, *self.first))))
            self.logits = value

    @np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
    def judge(
        self,
        stage: OracleStage,
        port: Mapping[str, np.ndarray],
        prefix: str,
        padding: Padding | None = None,
    ) -> list[Tap]:
        """Judge every tap of a stage that the port has, in the order of computation.

        With `padding` the tokens alone count that are real. A tap whose shape is not the
        reference's is judged on nothing else; one that is rightly empty is left out, since it
        compares nothing.
        """
        taps = stage.recorded.taps
        fitting = fitting_taps(taps, port, prefix, padding)
        known: Known = {}
        centre = self.centre.stage(stage.recorded, fitting)
        spread = [way.stage(stage.recorded, fitting, known) for way in self.ways]
        for replay in (self.centre, *self.ways):
            replay.forget_all_but(stage.alive)
        operations = {id(node.output): node.op for node in stage.recorded.nodes}
        return [
            judged_tap(prefix + name, operations[id(truth)], port[name], truth, centre[name],
                       [way[name] for way in spread], self.dtype, padding)
            if name in fitting
            else misshapen(prefix + name, operations[id(truth)], port[name], truth)
            for name, truth in taps.items()
            if name in port and (truth.size or name not in fitting)
        ]  # fmt: skip

    @np.errstate(all="ignore")
    def pass_by(
        self,
        stage: OracleStage,
        port: Mapping[str, np.ndarray],
        prefix: str,
        padding: Padding | None = None,
    ) -> None:
        """Do what `judge` leaves behind for later stages, and no more."""
        fitting = fitting_taps(stage.recorded.taps, port, prefix, padding)
        for replay in (self.centre, *self.ways):
            replay.carry(stage.recorded, fitting, stage.alive)


def fitting_taps(
    taps: Mapping[str, np.ndarray], port: Mapping[str, np.ndarray], prefix: str,
    padding: Padding | None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return those of the port's `taps` that have the right shape, as far as they count."""
    fitting = {name: port[name] for name in taps if shaped_alike(port.get(name), taps[name])}
    if padding is None:
        return fitting
    return {name: padding.healed(prefix + name, one, taps[name]) for name, one in fitting.items()}


def judged_tap(
    name: str,
    op: str | None,
    port: np.ndarray,
    truth: np.ndarray,
    centre: np.ndarray,
    spread: list[np.ndarray],
    dtype: np.dtype,
    padding: Padding | None = None,
) -> Tap:
    """Put accumulated and own error side by side; `dtype` is the port's."""
    shape, rows = port.shape, ""
    if padding is not None and padding.fits(name, shape):
        whole = port, truth, centre, spread
        port, truth, centre = (padding.real(name, one) for one in (port, truth, centre))
        spread = [padding.real(name, one) for one in spread]
    else:
        padding = None
    far, own = distance(port, truth), judge(port, centre, spread, dtype)
    if padding is not None and not own.passed:
        rows = wrong_rows(name, whole[0], whole[2], whole[3], dtype, padding)
    inherited = rms(difference(centre, truth)) / (rms(truth.astype(np.float64)) or 1.0)
    return Tap(
        name=name,
        op=op,
        shape=shape,
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
        place=described(own, port, centre, rows, padding and partial(padding.place, name, shape)),
        histogram=far.histogram,
    )


def shaped_alike(port: np.ndarray | None, truth: np.ndarray) -> bool:
    return port is not None and port.shape == truth.shape


def misshapen(name: str, op: str, port: np.ndarray, truth: np.ndarray) -> Tap:
    """Report a tap whose shape alone is wrong; nothing is broadcast to make it fit."""
    place = f"shape {list(port.shape)}, but should be {list(truth.shape)}"
    return Tap(name=name, op=op, shape=port.shape, status="diverged", place=place)


def wrong_rows(
    name: str,
    port: np.ndarray,
    centre: np.ndarray,
    spread: list[np.ndarray],
    dtype: np.dtype,
    padding: Padding,
) -> str:
    """Name the rows of a batch that fail by themselves."""

    def passes(row: int) -> bool:
        own = [padding.real(name, one, row) for one in (port, centre, *spread)]
        return judge(own[0], own[1], own[2:], dtype).passed

    return rows_named([row for row in range(padding.rows) if not passes(row)], padding.rows)


def described(
    own: Judgement,
    port: np.ndarray,
    right: np.ndarray,
    rows: str = "",
    place: Callable[[Sequence[int]], list[int]] | None = None,
) -> str | None:
    """Say the first bad value and what it should be; and which measure failed, if not the ratio.

    `place` says where in the tensor an index is, if what is judged is a part of it.
    """
    index = own.first_bad
    if index is None:
        return None
    where = list(index) if place is None else place(index)
    said = f"{rows}first at {where}: {port[index]:.6g}, but should be {right[index]:.6g}"
    if own.ratio > max(own.row_ratio, own.cell_ratio) / 100:  # then the ratio itself says enough
        return said
    return f"{said}; a row is {own.row_ratio:.3g} times its noise, a number {own.cell_ratio:.3g}"
