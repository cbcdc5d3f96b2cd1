"""Judge a dump against the torch modules of its model, where Lockstep has no file of its own.

Every module runs on the port's own values, so own and inherited error stand apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lockstep.parity.align import Alignment
from lockstep.parity.check import with_heritage
from lockstep.parity.cli.output import counted
from lockstep.parity.diff_plain import not_judged
from lockstep.parity.diff_with_oracle import NO_TOKENS, against
from lockstep.parity.dump import Dump
from lockstep.parity.metrics import difference, rms
from lockstep.parity.names import is_tap, parted, step_of, tap_named, unwrapped
from lockstep.parity.oracle import judged_tap, misshapen
from lockstep.parity.result import Result, Tap
from lockstep.parity.torch_modules.loading import TorchModel, load, quiet
from lockstep.parity.torch_modules.replays import Replayed, replayed
from lockstep.parity.torch_modules.scaled_embedding import taken_as_scaled
from lockstep.parity.torch_modules.survey import Survey, survey
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.precision import dtype_named

Progress = Callable[[str], None]
JUDGED_BY = "judged by the torch modules of transformers; noise is what {count} show: {names}"
FAR = 100  # times the error of transformers' own way: rounding does no such thing
OTHER_ROWS = "its rows are not the tokens"


def with_modules(
    result: Result,
    left: Dump,
    right: Dump,
    path: str | Path,
    tokens: list[int] | None,
    dtype: str,
    progress: Progress,
) -> tuple[Alignment, Alignment]:
    """Judge every tap of `right` that a module of the model hands out; return how both align.

    Raises: InputError if the prompt is not known or the model cannot be loaded.
    """
    if not tokens:
        raise InputError(right.path, NO_TOKENS)
    later = right.fed or left.fed
    last = last_step_reached(right, later)
    with quiet(), np.errstate(all="ignore"):  # what a broken port dumps may overflow anywhere
        model = load(path, dtype=dtype)
        check_tokens(model, tokens, "the prompt")
        check_tokens(model, [token for one in later for token in one], "decoded")
        found = survey(model.module, tokens, later, last)
        bare = aligned(right, found)
        scaled = taken_as_scaled(model.module, bare, found.fed)
        port, taps, ways = judgement(model, found, scaled, tokens, progress)
        if scaled is not bare and any(map(is_wrong, taps)):  # or it forgets the scale
            other = judgement(model, found, bare, tokens, progress)
            port, taps, ways = min(other, (port, taps, ways), key=lambda one: wrong_in(one[1]))
    sides = aligned(left, found), port
    for number in range(len(found.fed)):
        of_step = [against(tap, sides[0], fit(port, tap))
                   for tap in taps if step_of(tap.name) == number]  # fmt: skip
        result.taps += with_heritage(of_step, result.first_divergence)
    told = JUDGED_BY.format(count=counted(ways, "legal way"), names=", ".join(ways))
    result.notes += [told, *model.warnings]
    return sides


def judgement(
    model: TorchModel, found: Survey, port: Alignment, tokens: list[int], progress: Progress
) -> tuple[Alignment, list[Tap], list[str]]:
    """Replay a port and judge it; return the port, its taps and the names of the legal ways."""
    with tempfile.TemporaryDirectory() as folder:
        replay = replayed(model, port, found, Path(folder), progress)
        taps = list(judged(found, port, replay, tokens, model.dtype))
    return port, taps, [way.path.name for way in replay.ways]


def is_wrong(tap: Tap) -> bool:
    return tap.status == "diverged"


def wrong_in(taps: list[Tap]) -> int:
    return sum(map(is_wrong, taps))


def check_tokens(model: TorchModel, tokens: list[int], whose: str) -> None:
    """Raise InputError if a token is beyond the vocabulary."""
    size = model.sizes.vocab_size
    for place, token in enumerate(tokens):
        if token >= size:
            where = f"token {place} of {whose}"
            raise InputError(model.path, f"token id {token}, but should be 0..{size - 1}", where)


def last_step_reached(right: Dump, later: list[list[int]]) -> int:
    """Return the last step of a dump. Raises InputError if nobody says how to reach it."""
    steps = {step_of(name) for name in right.shapes}
    reached = max(len(later), len(steps - {0}))
    if max(steps) > reached:
        what = f"holds step {max(steps)}, but only {reached} of the steps before it"
        raise InputError(right.path, f"{what}; say what was fed, in the metadata: decoded")
    return max(steps)


def aligned(dump: Dump, found: Survey) -> Alignment:
    """Map the names of a dump onto the modules of a model.

    A module that hands on another's value means that one, whose own name wins.
    """
    names: dict[str, str] = {}
    for name in dump.shapes:
        tap = module_named(name, found)
        if tap not in names or parted(name)[1] == parted(tap)[1]:
            names[tap] = name
    renamed = sum(tap != name for tap, name in names.items())
    return Alignment(dump, names, renamed)


def module_named(name: str, found: Survey) -> str:
    """Return the tap of a dumped name: a module's path, or whatever other engines call it."""
    once = name.removesuffix("@1")  # a capture counts from 1 where a module ran more than once
    for known in (name, unwrapped(name), tap_named(name), once, unwrapped(once)):
        step, path = parted(known)
        tap = found.aliases.get(step + path, step + path)
        if tap in found.shapes:
            return tap
    return tap_named(name) if is_tap(tap_named(name)) else name


def judged(
    found: Survey, right: Alignment, replay: Replayed, tokens: list[int], dtype: str
) -> Iterator[Tap]:
    """Judge the taps in the order of computation."""
    for name in found.shapes:
        if name not in right.names:
            continue
        centre = replay.centre.read(name)
        port = right.read(name, centre.shape)
        if port.dtype.kind in "iubc":
            place = f"stored as {port.dtype}, but an activation should be floating"
            yield Tap(name, None, port.shape, "diverged", place=place)
        elif port.shape != centre.shape:
            length = len(found.fed[step_of(name)])
            rows = np.prod(centre.shape[:-1], dtype=int)
            of_tokens = rows % length == 0
            yield (
                misshapen(name, made_by(name, found, right), port, centre)
                if of_tokens
                else (not_judged(name, port.shape, OTHER_ROWS))
            )
        elif port.size:
            spread = spread_of(replay, name, centre)
            truth = replay.truth.read(name)
            yield judged_tap(name, made_by(name, found, right), port, truth, centre, spread,
                             dtype_named(dtype))  # fmt: skip


def spread_of(replay: Replayed, name: str, centre: np.ndarray) -> list[np.ndarray]:
    """Return what the legal ways make of a tap, without one that is far from the first of them.

    A kernel that leaves something out, such as a cap, would hide every bug there as noise.
    """
    first, *others = (way.read(name) for way in replay.ways)
    limit = FAR * rms(difference(first, centre))
    near = [one for one in others if not limit or rms(difference(one, centre)) <= limit]
    return [first, *near]


def made_by(name: str, found: Survey, right: Alignment) -> str:
    """Say which class of module hands out a tap, and which values of the port it was fed."""
    kind = found.kinds.get(parted(name)[1].partition("@")[0], "module")
    sources = found.nearest(name, right.names)
    home, _, last = name.rpartition(".")
    home = name if last.isdigit() else home  # a layer is made of its own parts
    short = [one.removeprefix(f"{home}.") for one in sources]
    return f"{kind} from {', '.join(short)}" if short else kind


def fit(right: Alignment, tap: Tap) -> np.ndarray | None:
    """Return the port's value of a tap that was judged by its numbers."""
    return None if tap.ratio is None else right.read(tap.name, tap.shape)
