"""Judge a dump against the torch modules of its model, where Lockstep has no file of its own.

Every module runs on the port's own values, so own and inherited error stand apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lockstep.parity.check import with_heritage
from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.plain import not_judged
from lockstep.parity.diffing.with_oracle import NO_TOKENS, against
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.judging.padding import Padding, fed_in_steps
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import is_tap, parted, step_of, tap_named, unwrapped
from lockstep.parity.replaying.oracle import judged_tap, misshapen
from lockstep.parity.torch_modules.batches import Stacked, row_of, stacked
from lockstep.parity.torch_modules.loading import TorchModel, load, quiet
from lockstep.parity.torch_modules.replays import Replayed, Replays
from lockstep.parity.torch_modules.scaled_embedding import taken_as_scaled
from lockstep.parity.torch_modules.steering import steered
from lockstep.parity.torch_modules.survey import Survey, survey
from lockstep.parity.torch_modules.turns import Turns, said
from lockstep.parity.torch_modules.wiring import told, wires
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
    rows: list[list[int]] | None = None,
) -> tuple[Alignment, Alignment]:
    """Judge every tap of `right` that a module of the model hands out; return how both align.

    `rows` are the prompts of a batch, each of which the modules run alone.
    Raises: InputError if the prompt is not known or the model cannot be loaded.
    """
    prompts = rows or [tokens or []]
    if not all(prompts):
        raise InputError(right.path, NO_TOKENS)
    padding = None if rows is None else Padding(tuple(map(len, rows)))
    later = later_of(left, right, len(prompts), rows is not None)
    last = last_step_reached(right, later[0], batch=rows is not None)
    with quiet(), np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        # What a broken port dumps may overflow anywhere.
        model, parts = load(path, dtype=dtype), []
        for row, prompt in enumerate(prompts):
            check_tokens(model, prompt, "the prompt")
            check_tokens(model, [token for one in later[row] for token in one], "decoded")
            found = survey(model.module, prompt, later[row], last)
            both = sides_of(left, right, found, padding, row)
            home = Path(folder) / str(row)
            parts.append(part_of(model, found, both, prompt, home, progress))
        result.wiring = wiring(model, parts)
        sides, taps = parts[0].sides, parts[0].taps
        if padding is not None:
            sides = together(parts, padding, left, right)
            taps = list(judged_together(parts, sides[1], padding, model.dtype))
        told = (*sides[1].told, *said([part.turns for part in parts]))
        sides = sides[0], replace(sides[1], told=told)
        for number in range(last + 1):
            of_step = [against(tap, sides[0], fit(sides[1], tap), padding)
                       for tap in taps if step_of(tap.name) == number]  # fmt: skip
            result.taps += with_heritage(of_step, result.first_divergence)
    ways = list(parts[0].replay.ways)
    by = JUDGED_BY.format(count=counted(ways, "legal way"), names=", ".join(ways))
    result.notes += [by, *model.warnings]
    return sides


def wiring(model: TorchModel, parts: Sequence[Part]) -> list[str]:
    """Say which modules are fed with another value than they should be, by the first wrong row."""
    for part in parts:
        if wrong := [tap.name for tap in part.taps if is_wrong(tap) and tap.ratio is not None]:
            return told(wires(model, part.found, part.sides[1], part.replay, wrong))
    return []


def sides_of(
    left: Dump, right: Dump, found: Survey, padding: Padding | None, row: int
) -> tuple[Alignment, Alignment]:
    """Align both sides, and of a batch take a row. One that says no batch is like the other."""
    ours, theirs = aligned(left, found), aligned(right, found)
    if padding is None:
        return ours, theirs
    said = left if left.batch else right, right if right.batch else left
    return row_of(ours, said[0], padding, row), row_of(theirs, said[1], padding, row)


def later_of(left: Dump, right: Dump, count: int, batch: bool) -> list[list[list[int]]]:
    """Return what each prompt is fed in each step after it."""
    if not batch:
        return [right.fed or left.fed]
    steps = fed_in_steps(left, right)
    return [[step[row].tolist() for step in steps] for row in range(count)]


@dataclass(frozen=True)
class Part:
    """One prompt: what the modules make of it, both sides, the replays, the judged taps, and how
    many choices were turned to the port's."""

    found: Survey
    sides: tuple[Alignment, Alignment]
    replay: Replayed
    taps: list[Tap]
    turns: Turns


def part_of(
    model: TorchModel,
    found: Survey,
    sides: tuple[Alignment, Alignment],
    tokens: list[int],
    home: Path,
    progress: Progress,
) -> Part:
    """Judge one prompt, by an embedding that is scaled behind its module if that is better."""
    left, right = sides
    scaled = taken_as_scaled(model.module, right, found.fed)
    part = judgement(model, found, (left, scaled), tokens, home / "scaled", progress)
    if scaled is not right and any(map(is_wrong, part.taps)):  # or it forgets the scale
        other = judgement(model, found, (left, right), tokens, home / "bare", progress)
        return min(other, part, key=lambda one: wrong_in(one.taps))
    return part


def judgement(
    model: TorchModel,
    found: Survey,
    sides: tuple[Alignment, Alignment],
    tokens: list[int],
    home: Path,
    progress: Progress,
) -> Part:
    """Replay a port and judge it, with the choices of its own where rounding leaves them open."""
    home.mkdir(parents=True)
    port, turns = sides[1], Turns()
    replays = Replays(model, port, found, home, progress)
    replay = replays.all()
    taps = list(judged(found, port, replay, tokens, model.dtype))
    if wrong := [tap.name for tap in taps if is_wrong(tap)]:
        replay, turns = steered(replays, replay, port, found, wrong)
        if turns.count and turns.legal:
            taps = list(judged(found, port, replay, tokens, model.dtype))
    return Part(found, sides, replay, taps, turns)


def together(
    parts: Sequence[Part], padding: Padding, left: Dump, right: Dump
) -> tuple[Alignment, Alignment]:
    """Return both sides of a batch, their rows side by side."""
    found = tuple(part.found for part in parts)

    def side(number: int, dump: Dump) -> Alignment:
        rows = tuple(part.sides[number] for part in parts)
        first, told = rows[0], dict.fromkeys(line for row in rows for line in row.told)
        return Stacked(dump, first.names, first.renamed, first.moved, tuple(told),
                       rows=rows, found=found, padding=padding)  # fmt: skip

    return side(0, left), side(1, right)


def judged_together(
    parts: Sequence[Part], port: Alignment, padding: Padding, dtype: str
) -> Iterator[Tap]:
    """Judge the rows of a batch as one, tap by tap: what fills them up is no part of that."""
    for alone in parts[0].taps:
        name = alone.name
        if alone.status == "not judged":
            yield alone
            continue
        every = [[part.replay.truth.read(name), part.replay.centre.read(name),
                  *(way.read(name) for way in part.replay.ways.values())]
                 for part in parts]  # fmt: skip
        truth, centre, *ways = (stacked(row, padding) for row in zip(*every, strict=True))
        value = port.read(name, centre.shape)
        if value.shape != centre.shape or value.dtype.kind in "iubc":
            tap = next((tap for part in parts for tap in part.taps
                        if tap.name == name and is_wrong(tap)), alone)  # fmt: skip
            yield as_in_file(tap, port, centre)
        else:
            yield judged_tap(name, alone.op, value, truth, centre, sensible(ways, centre),
                             dtype_named(dtype), padding)  # fmt: skip


def as_in_file(tap: Tap, port: Alignment, centre: np.ndarray) -> Tap:
    """Name the shape that all rows of a batch have in the file, and should have."""
    whole = port.dump.shapes[port.names[tap.name]]
    if whole == centre.shape or (tap.place or "").startswith("stored as"):
        return tap
    place = f"shape {list(whole)}, but should be {list(centre.shape)}"
    return replace(tap, shape=whole, place=place)


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


def last_step_reached(right: Dump, later: list[list[int]], *, batch: bool = False) -> int:
    """Return the last step of a dump. Raises InputError if nobody says how to reach it.

    A row that is run alone would choose its own way, so of a batch all steps must be said.
    """
    steps = {step_of(name) for name in right.shapes}
    reached = len(later) if batch else max(len(later), len(steps - {0}))
    if max(steps) > reached:
        what = f"holds step {max(steps)}, but only {reached} of the steps before it"
        key = "batch_decoded" if batch else "decoded"
        raise InputError(right.path, f"{what}; say what was fed, in the metadata: {key}")
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


def fit(right: Alignment, tap: Tap) -> np.ndarray | None:
    """Return the port's value of a tap that was judged by its numbers."""
    return None if tap.ratio is None else right.read(tap.name, tap.shape)
