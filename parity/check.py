"""Run the reference and a backend in lock step, and compare every tap as it is made."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.replaying.cached import caches_behind
from lockstep.parity.replaying.oracle import Oracle
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

Progress = Callable[[str], None]


def check(
    reference: Model,
    port: Any,
    tokens: Any,
    *,
    decode: int = 0,
    positions: Any = None,
    lengths: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Compare `port`, a model with the interface of `reference`, layer by layer over a prompt.

    `tokens` is (B, L), and so are `positions`, which default to 0, 1, 2 and so on. `lengths` (B,)
    says how many of each row are real; what fills up the others is compared with nothing. After the
    prefill, `decode` further steps feed both sides the reference's greedy choice; what the caches
    hold is then compared too. Each side holds one layer of activations at a time.
    Raises: InputError if nothing could be compared.
    """
    oracle, cache = Oracle(reference, port.dtype, caches=decode > 0), port.make_cache()
    result = Result(left=f"reference {reference.dtype}", right=described(port), command="check")
    tokens = np.asarray(tokens)
    padding = padding_of(tokens, lengths)
    for step in range(decode + 1):
        prefix = f"step.{step}/" if step else ""
        first = {"positions": positions, "lengths": lengths}
        for name, taps, missing in lock_step(
            oracle, port, cache, tokens, prefix, padding, {} if step else first
        ):
            result.taps += with_heritage(taps, result.first_divergence)
            result.unmatched += missing
            if progress is not None:
                progress(prefix + name)
        if step < decode:
            tokens = chosen(np.asarray(oracle.logits), None if step else padding)
    if all(tap.max_abs == 0 and tap.rms_rel is None for tap in result.taps):
        why = "all taps are zero on both sides" if result.taps else "no tap has a partner"
        raise InputError(reference.checkpoint.path, f"nothing was compared: {why}")
    return result


def lock_step(
    oracle: Oracle,
    port: Any,
    cache: Any,
    tokens: np.ndarray,
    prefix: str,
    padding: Padding | None,
    placed: dict[str, Any],
) -> Iterator[tuple[str, list[Tap], list[str]]]:
    """Advance both sides by one stage at a time: yield its name, its taps, and those missing."""
    made: dict[str, Any] = {}
    theirs = port.stages(tokens, cache=cache, trace=made.__setitem__, **placed)
    for stage in oracle.stages(tokens, **placed):
        if next(theirs, None) is None:
            raise InputError("port", f"its stages end before {stage.name}, which is compared next")
        if oracle.caches:
            made |= dict(caches_behind(stage.name, cache))
        values = {name: to_numpy(value) for name, value in made.items()}
        taps = oracle.judge(stage, values, prefix, padding)
        missing = stage.recorded.taps.keys() ^ values.keys()
        yield stage.name, taps, [prefix + name for name in sorted(missing)]
        made.clear()


def padding_of(tokens: np.ndarray, lengths: Any) -> Padding | None:
    """Return which tokens of a batch are real, None of a single row."""
    if tokens.ndim != 2 or len(tokens) < 2:
        return None
    return Padding(tuple([tokens.shape[1]] * len(tokens) if lengths is None else map(int, lengths)))


def chosen(logits: np.ndarray, padding: Padding | None) -> np.ndarray:
    """Return the likeliest token behind each row's last one, (B, 1)."""
    if padding is None:
        return np.argmax(logits[:, -1:], axis=-1)
    return np.argmax(logits[np.arange(len(logits)), padding.last], axis=-1)[:, None]


def with_heritage(taps: list[Tap], first: Tap | None) -> list[Tap]:
    """Mark as inherited what is right in itself but far off because of an earlier divergence."""
    marked = []
    for tap in taps:
        first = first or (tap if tap.status == "diverged" else None)
        heavy = tap.inherited_error is not None and not tap.inherited_error <= 10 * (tap.noise or 0)
        if tap.status == "ok" and first is not None and heavy:
            tap = replace(tap, status="inherited")
        marked.append(tap)
    return marked


def described(port: Any) -> str:
    backend = getattr(port, "backend", None)
    return f"{backend.name if backend else 'reference'} {port.dtype}"
