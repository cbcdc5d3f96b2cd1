"""Compare two traces or dumps, with or without the model that they came from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.align import Alignment, align
from lockstep.parity.check import Progress, with_heritage
from lockstep.parity.dump import Dump, open_dump
from lockstep.parity.metrics import distance
from lockstep.parity.names import STEP
from lockstep.parity.oracle import Oracle
from lockstep.parity.result import Result, Tap
from lockstep.reference.checkpoint.errors import InputError

# Without an oracle, rounding alone must explain the difference: this many steps of the last bit,
# as root mean square over that of the left side. Errors of earlier layers are in it.
STEPS = 64
EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NO_ORACLE = "no --model, so no oracle: own error is not known, and the verdict rests on rounding alone"


def diff(
    left: str | Path | Dump,
    right: str | Path | Dump,
    *,
    model: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Compare `right`, the port, with `left`, what it should be, tap by tap.

    With `model` (a reference model) every tap of `right` is also replayed from its own inputs, so
    that own and inherited error stand apart. Both sides are streamed.
    Raises: InputError if a file is bad, the two have other tokens, or no tap is in both.
    """
    left, right = (side if isinstance(side, Dump) else open_dump(side) for side in (left, right))
    tokens = shared_tokens(left, right)
    result = Result(left=str(left.path), right=str(right.path))
    sides = align(left), align(right)
    result.unmatched = sorted(sides[0].names.keys() ^ sides[1].names.keys())
    if model is None:
        result.notes.append(NO_ORACLE)
        result.taps = plain(*sides, dtype_of(left, right))
    else:
        with_oracle(result, *sides, model, tokens)
    result.conventions = [f"left: {line}" for line in sides[0].plan]
    result.conventions += [f"right: {line}" for line in sides[1].plan]
    if not result.taps:
        raise InputError(right.path, f"nothing was compared: no tap is in {left.path} too")
    return result


def plain(left: Alignment, right: Alignment, dtype: str) -> list[Tap]:
    """Compare every shared tap by its distance alone."""
    taps = []
    for name in left.names:
        if name not in right.names:
            continue
        truth = left.dump.read(left.names[name])
        taps.append(judged_plainly(name, right.read(name, truth.shape), truth, dtype))
    return taps


def judged_plainly(name: str, port: np.ndarray, truth: np.ndarray, dtype: str) -> Tap:
    if port.shape != truth.shape:
        place = f"shape {list(port.shape)}, but should be {list(truth.shape)}"
        return Tap(name=name, op=None, shape=port.shape, status="differs", place=place)
    far = distance(port, truth)
    close = far.max_abs == 0 or (
        far.rms_rel is not None and far.rms_rel <= STEPS * EPSILONS[dtype]
    )
    return Tap(
        name=name,
        op=None,
        shape=port.shape,
        status="ok" if close else "differs",
        max_abs=far.max_abs,
        rms_rel=far.rms_rel,
        cosine=far.cosine,
        gain=far.gain,
    )


def with_oracle(
    result: Result, left: Alignment, right: Alignment, model: Any, tokens: list[int] | None
) -> None:
    """Walk the reference over the tokens and judge what the right side has of every stage."""
    if tokens is None:
        raise InputError(right.dump.path, "says no tokens, and neither does the other side")
    oracle, fed = Oracle(model, dtype_of(left.dump, right.dump)), np.array([tokens])
    for step in range(last_step(right) + 1):
        prefix = f"step.{step}/" if step else ""
        for stage in oracle.stages(fed):
            shapes = {name: value.shape for name, value in stage.recorded.taps.items()}
            port = read_all(right, prefix, shapes)
            taps = [against(tap, left, port[tap.name.removeprefix(prefix)])
                    for tap in oracle.judge(stage, port, prefix)]  # fmt: skip
            result.taps += with_heritage(taps, result.first_divergence)
        fed = next_tokens(right.dump, oracle, step)


def read_all(side: Alignment, prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {
        name: side.read(prefix + name, shape)
        for name, shape in shapes.items()
        if prefix + name in side.names
    }


def against(tap: Tap, left: Alignment, port: np.ndarray) -> Tap:
    """Measure the distance to the left side instead of the oracle's own run, where it has the tap."""
    if tap.name not in left.names:
        return tap
    truth = left.read(tap.name, port.shape)
    if truth.shape != port.shape:
        return tap
    far = distance(port, truth)
    return replace(
        tap, max_abs=far.max_abs, rms_rel=far.rms_rel, cosine=far.cosine, gain=far.gain
    )


def last_step(side: Alignment) -> int:
    steps = [STEP.match(name) for name in side.names]
    return max((int(found.group()[5:-1]) for found in steps if found), default=0)


def next_tokens(dump: Dump, oracle: Oracle, step: int) -> np.ndarray:
    """Return what the port was fed next: as its trace says, else the oracle's greedy choice."""
    decoded = json.loads(dump.about.get("decoded", "[]"))
    if step < len(decoded):
        return np.array([[decoded[step]]])
    return np.argmax(oracle.logits[:, -1:], axis=-1)


def shared_tokens(left: Dump, right: Dump) -> list[int] | None:
    """Return the prompt of both sides, from whichever says it.

    Raises: InputError at the first place where they are not the same.
    """
    ours, theirs = left.tokens, right.tokens
    if ours is None or theirs is None or ours == theirs:
        return theirs if ours is None else ours
    pairs = zip(ours, theirs, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    what = f"the two sides were given other tokens than {left.path}"
    raise InputError(right.path, what, f"from position {place} on")


def dtype_of(left: Dump, right: Dump) -> str:
    """Return the coarser of the two dtypes, as the traces say or as their logits are stored."""
    named = [side.about.get("dtype") or stored_dtype(side) for side in (left, right)]
    known = [name for name in named if name in EPSILONS] or ["float32"]
    return max(known, key=EPSILONS.__getitem__)


def stored_dtype(dump: Dump) -> str:
    return dump.read(next(iter(dump.shapes))).dtype.name
