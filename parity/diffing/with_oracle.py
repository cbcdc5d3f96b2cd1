"""Judge a dump against its model: every tap is replayed from the dump's own values."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from lockstep.parity.check import with_heritage
from lockstep.parity.judging.metrics import distance
from lockstep.parity.judging.padding import Padding, fed_in_steps
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import CACHED, step_of
from lockstep.parity.replaying.oracle import Oracle
from lockstep.parity.resuming.kept_taps import NOTHING, Kept
from lockstep.reference.checkpoint.errors import InputError

NO_TOKENS = (
    "with --model the prompt must be known, and neither side says it: pass --tokens, let LEFT be "
    "a trace of `lockstep trace`, or put tokens into the metadata"
)


class HasLogits(Protocol):
    """An oracle, of all tokens or of some: what it scored last."""

    logits: np.ndarray | None


def with_oracle(
    result: Result,
    left: Alignment,
    right: Alignment,
    model: Any,
    tokens: list[int] | None,
    dtype: str,
    progress: Callable[[str], None],
    rows: list[list[int]] | None = None,
    kept: Kept = NOTHING,
) -> None:
    """Walk the reference over the tokens and judge what the right side has of every stage.

    What is `kept` of an interrupted run is not judged again, but the reference runs all the same.

    `rows` are the prompts of a batch, whose sides are filled up on the right.
    """
    if not tokens and not rows:
        raise InputError(right.dump.path, NO_TOKENS)
    padding = None if rows is None else Padding(tuple(map(len, rows)))
    fed = steps(left, right, tokens or []) if padding is None else of_batch(left, right, rows or [])
    oracle = Oracle(model, dtype, caches=any(name.endswith(CACHED) for name in right.names))
    for step in range(last_step(right) + 1):
        prefix = f"step.{step}/" if step else ""
        placed = {} if padding is None or step else {"lengths": padding.lengths}
        for stage in oracle.stages(fed(step, oracle), **placed):
            shapes = {name: value.shape for name, value in stage.recorded.taps.items()}
            port, spoilt = read_all(right, prefix, shapes)
            if (known := kept.taps(prefix + stage.name)) is not None:
                oracle.pass_by(stage, port, prefix, padding)
                result.taps += with_heritage(known, result.first_divergence)
                for tap in known:
                    progress(tap.name)
                continue
            with np.errstate(all="ignore"):
                judged = {tap.name: tap for tap in oracle.judge(stage, port, prefix, padding)}
                judged |= spoilt
                ordered = [judged[prefix + name] for name in shapes if prefix + name in judged]
                taps = [against(tap, left, port.get(tap.name.removeprefix(prefix)), padding)
                        for tap in ordered]  # fmt: skip
            kept.add(prefix + stage.name, taps)
            result.taps += with_heritage(taps, result.first_divergence)
            for tap in ordered:
                progress(tap.name)


def read_all(
    side: Alignment, prefix: str, shapes: dict[str, tuple[int, ...]]
) -> tuple[dict[str, np.ndarray], dict[str, Tap]]:
    """Read a stage's taps; those that hold no floating numbers come as what is wrong with them."""
    port: dict[str, np.ndarray] = {}
    spoilt: dict[str, Tap] = {}
    for name, shape in shapes.items():
        full = prefix + name
        if full not in side.names:
            continue
        value = side.read(full, shape)
        if name.endswith(CACHED) and value.shape != shape:
            continue  # slots in an order of their own, which is no bug
        if value.dtype.kind in "iubc":
            place = f"stored as {value.dtype}, but an activation should be floating"
            spoilt[full] = Tap(full, None, value.shape, "diverged", place=place)
        else:
            port[name] = value
    return port, spoilt


def against(
    tap: Tap, left: Alignment, port: np.ndarray | None, padding: Padding | None = None
) -> Tap:
    """Measure the distance to the left side, where it has the tap, not to the oracle's own run."""
    if port is None or tap.name not in left.names:
        return tap
    truth = left.read(tap.name, port.shape)
    if truth.shape != port.shape or truth.dtype.kind == "c":
        return tap
    if padding is not None and padding.fits(tap.name, port.shape):
        port, truth = (padding.real(tap.name, one) for one in (port, truth))
    far = distance(port, truth)
    return replace(tap, max_abs=far.max_abs, rms_rel=far.rms_rel, cosine=far.cosine, gain=far.gain,
                   histogram=far.histogram)  # fmt: skip


def last_step(side: Alignment) -> int:
    return max(map(step_of, side.names))


def of_batch(
    left: Alignment, right: Alignment, rows: list[list[int]]
) -> Callable[[int, HasLogits], np.ndarray]:
    """Return what the rows of a batch are fed in each pass. Raises: InputError if nobody says."""
    prompts = Padding(tuple(map(len, rows))).filled(rows)
    passes = [prompts, *fed_in_steps(left.dump, right.dump)]
    if last_step(right) >= len(passes):
        what = f"holds step {last_step(right)}, but batch_decoded says what was fed in "
        raise InputError(right.dump.path, f"{what}{len(passes) - 1} steps", "__metadata__")
    return lambda step, oracle: passes[step]


def steps(
    left: Alignment, right: Alignment, tokens: list[int]
) -> Callable[[int, HasLogits], np.ndarray]:
    """Return what is fed at each step: as a trace says, else the oracle's greedy choice.

    Raises: InputError if a step is dumped that nobody says how to reach.
    """
    decoded = right.dump.fed or left.dump.fed
    last, present = last_step(right), len({step_of(name) for name in right.names} - {0})
    if last > max(len(decoded), present):
        what = f"holds step {last}, but only {max(len(decoded), present)} of the steps before it"
        raise InputError(right.dump.path, f"{what}; say what was fed, in the metadata: decoded")

    def fed(step: int, oracle: HasLogits) -> np.ndarray:
        if step == 0:
            return np.array([tokens])
        if step <= len(decoded):
            return np.array([decoded[step - 1]])
        return np.argmax(np.asarray(oracle.logits)[:, -1:], axis=-1)

    return fed
