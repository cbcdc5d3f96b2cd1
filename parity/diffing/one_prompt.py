"""Judge one prompt of a dump by the torch modules of its model, tap by tap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lockstep.parity.diffing.plain import not_judged
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import parted, step_of
from lockstep.parity.replaying.oracle import judged_tap, misshapen
from lockstep.parity.torch_modules.loading import TorchModel
from lockstep.parity.torch_modules.replays import Replayed, Replays
from lockstep.parity.torch_modules.scaled_embedding import taken_as_scaled
from lockstep.parity.torch_modules.steering import steered
from lockstep.parity.torch_modules.survey import Survey
from lockstep.parity.torch_modules.turns import Turns
from lockstep.reference.precision import dtype_named

Progress = Callable[[str], None]
FAR = 100  # times the error of transformers' own way: rounding does no such thing
OTHER_ROWS = "its rows are not the tokens"


@dataclass(frozen=True)
class Prompt:
    """What is judged at once: what the modules make of one prompt, both sides, and the folder that
    its replays go to."""

    found: Survey
    sides: tuple[Alignment, Alignment]
    home: Path


@dataclass(frozen=True)
class Part:
    """A prompt that was judged: the replays, the taps, and how many choices were turned to the
    port's."""

    found: Survey
    sides: tuple[Alignment, Alignment]
    replay: Replayed
    taps: list[Tap]
    turns: Turns


def part_of(model: TorchModel, prompt: Prompt, progress: Progress) -> Part:
    """Judge one prompt, by an embedding that is scaled behind its module if that is better."""
    left, right = prompt.sides
    bare = replace(prompt, home=prompt.home / "bare")
    scaled = taken_as_scaled(model.module, right, prompt.found.fed)
    if scaled is right:
        return judgement(model, bare, progress)
    other = Prompt(prompt.found, (left, scaled), prompt.home / "scaled")
    part = judgement(model, other, progress)
    if any(map(is_wrong, part.taps)):  # or it forgets the scale
        return min(judgement(model, bare, progress), part, key=lambda one: wrong_in(one.taps))
    return part


def judgement(model: TorchModel, prompt: Prompt, progress: Progress) -> Part:
    """Replay a port and judge it, with the choices of its own where rounding leaves them open."""
    prompt.home.mkdir(parents=True)
    found, (_, port), turns = prompt.found, prompt.sides, Turns()
    replays = Replays(model, port, found, prompt.home, progress)
    replay = replays.all()
    taps = list(judged(found, port, replay, model.dtype))
    if wrong := [tap.name for tap in taps if is_wrong(tap)]:
        replay, turns = steered(replays, replay, port, found, wrong)
        if turns.count and turns.legal:
            taps = list(judged(found, port, replay, model.dtype))
    return Part(found, prompt.sides, replay, taps, turns)


def judged(found: Survey, right: Alignment, replay: Replayed, dtype: str) -> Iterator[Tap]:
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
            spread = sensible([way.read(name) for way in replay.ways.values()], centre)
            truth = replay.truth.read(name)
            yield judged_tap(name, made_by(name, found, right), port, truth, centre, spread,
                             dtype_named(dtype))  # fmt: skip


def sensible(ways: Sequence[np.ndarray], centre: np.ndarray) -> list[np.ndarray]:
    """Return what the legal ways make of a tap, without one that is far from the first of them.

    A kernel that leaves something out, such as a cap, would hide every bug there as noise.
    """
    first, *others = ways
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


def is_wrong(tap: Tap) -> bool:
    return tap.status == "diverged"


def wrong_in(taps: list[Tap]) -> int:
    return sum(map(is_wrong, taps))
