"""A dump of several steps, read as a dump of the whole text.

What is computed of the token of step s, from a cache, is what one long prefill computes of token
L + s - 1. So the tensors of the prompt and of its steps are put together along the tokens, and each
value is judged as in a prefill; a bug of the cache is wrong in the rows of steps alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.cli.output import counted
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.fed import steps_in, told_apart
from lockstep.parity.explaining.caches.taps import with_caches
from lockstep.parity.explaining.fused import with_fused
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.steps.batch import padded, positions_of, rows_of
from lockstep.parity.explaining.unmerged import with_unmerged
from lockstep.parity.graph import Graph, record
from lockstep.parity.naming.align import MOVES, Alignment, Shape, move_between
from lockstep.parity.naming.first_layer import first_layer
from lockstep.parity.naming.fused import fused_taps
from lockstep.parity.naming.names import CACHED, parted, step_of
from lockstep.parity.naming.plan import aligned
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.model import Model

NO_TOKENS = (
    "does not say which token ids it was made from: pass --tokens, or put them into its metadata "
    "(of safetensors; an .npz or a folder has none)"
)
NO_DECODED = (
    "holds {steps}, but says what was fed in {said}: put the ids into its metadata as "
    "decoded, or behind the prompt's in --tokens"
)


@dataclass(frozen=True)
class Fed:
    """What a port was fed: all ids (B, T), and how many in each pass, the prompt's first.

    `pads` (B, T) are those that only fill up a row of a batch; None if there is but one row.
    """

    tokens: np.ndarray
    lengths: tuple[int, ...]
    pads: np.ndarray | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """The token that each step begins with."""
        return tuple(int(end) for end in np.cumsum(self.lengths)[:-1])

    def shape_of_prompt(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """Return what of a value's shape is the prompt's."""
        return tuple(self.lengths[0] if axis in axes else n for axis, n in enumerate(shape))


def read_passes(
    model: Model, dump: Dump, tokens: Sequence[int] | None, names: str | Path | None
) -> tuple[Graph, Joined]:
    """Return the graph of all that a dump holds, its steps too, and where each tap of it is."""
    fed = fed_to(dump, tokens)
    graph = graph_of(model, fed, None if fed.pads is None else positions_of(fed.pads))
    first = partial(first_layer, model, fed.tokens[:, : fed.lengths[0]])
    values = first if fed.pads is None else None
    wanted = shapes_in_prompt(graph, fed)
    found = aligned(dump, wanted | fused_taps(wanted), names, values)
    graph, found = with_fused(model, graph, found, wanted)
    graph = with_unmerged(graph, found, wanted)
    sides = joined(found, graph, fed)
    return with_caches(graph, sides.caches), sides


def graph_of(model: Model, fed: Fed, positions: np.ndarray | None) -> Graph:
    """Return the graph of all that was fed, at these positions (B, T); None counts from 0."""
    graph = record(model, fed.tokens, positions, steps=fed.steps)
    return graph if fed.pads is None else padded(graph, fed.pads)


def shapes_in_prompt(graph: Graph, fed: Fed) -> dict[str, Shape]:
    """Return the shape of each tap in the pass of the prompt."""
    return {
        tap: fed.shape_of_prompt(graph.shapes[number], graph.token_axes[number])
        for tap, number in graph.taps.items()
    }


def fed_to(dump: Dump, tokens: Sequence[int] | None) -> Fed:
    """Return the tokens that a dump was made from.

    `tokens` go before what the dump says; of a dump that does not say what its steps were fed, they
    hold these ids too, at their end.
    Raises: InputError if the prompt, or what a step was fed, is not known.
    """
    if tokens is None and dump.batch is not None:
        some, pads, lengths = rows_of(dump, steps_in(dump))
        return Fed(some, tuple(lengths), pads)
    said = [*(dump.tokens or [])] if tokens is None else [*tokens]
    if not said:
        raise InputError(dump.path, NO_TOKENS)
    later = dump.fed[: (count := steps_in(dump))]
    if tokens is not None:
        said, fed = told_apart(dump, said)
        later = later or [[one] for one in fed]
    if len(later) < count:
        what = NO_DECODED.format(steps=counted(count, "step"), said=len(later) or "none")
        raise InputError(dump.path, what)
    return Fed(
        np.array([[*said, *(one for step in later for one in step)]]),
        (len(said), *map(len, later)),
    )


@dataclass(frozen=True)
class Joined(Alignment):
    """The taps of all passes, each read as one tensor of the whole text.

    `names` are those of the prompt's. `last` are taps of which passes of several tokens have the
    last one alone; of the tokens before it nothing is known, and nothing judged, unless another tap
    has the same value of all of them: `beside` says which. `caches` are the tensors of caches by
    their taps, and by the pass that they were dumped behind. `not_judged` are the model's taps that
    are left out, as `told` says.
    """

    lengths: tuple[int, ...] = ()
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last: frozenset[str] = frozenset()
    beside: Mapping[str, str] = field(default_factory=dict)
    caches: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    not_judged: frozenset[str] = frozenset()

    @property
    def unknown(self) -> frozenset[str]:
        """The taps of which nothing is known but of the last tokens of passes."""
        return self.last - self.beside.keys()

    def read(self, tap: str, shape: Shape | None = None) -> np.ndarray:
        """Return a tap in `shape`, that of the whole text; or what of it does not fit, as it is."""
        if shape is None or tap not in self.parts:
            return super().read(tap, shape)
        whole = []
        for number, name in enumerate(self.parts[tap]):
            wanted = self.shape_in(tap, shape, number)
            rows = self.own_rows(tap, shape, number)
            array = self.dump.read(name)
            move = move_between(array.shape, rows)
            if move is None or array.dtype.kind in "iubc":
                return array
            self.moved[move] += move != "none"
            whole.append(self.filled_up(tap, MOVES[move](array, rows), wanted, shape))
        return self.completed(np.concatenate(whole, axis=self.axes[tap][0]), tap)

    def completed(self, value: np.ndarray, tap: str) -> np.ndarray:
        """Take the tokens that passes left out from the tap that has them, if there is one."""
        if tap not in self.beside:
            return value
        other = replace(self, moved=Counter()).read(self.beside[tap], value.shape)
        shape = [1] * value.ndim
        shape[self.axes[tap][0]] = -1
        return np.where(self.left_out(tap, value.shape).reshape(shape), other, value)

    def left_out(self, tap: str, shape: Shape) -> np.ndarray:
        """Say of each token of the whole text whether its pass left it out of a tap."""
        short = self.short_passes(tap, shape)
        before = [length - 1 if n in short else 0 for n, length in enumerate(self.lengths)]
        every = zip(self.lengths, before, strict=True)
        return np.concatenate([np.arange(length) < some for length, some in every])

    def is_short(self, tap: str, shape: Shape, number: int) -> bool:
        """Say whether a pass of several tokens has one of them under a tap."""
        wanted, found = self.shape_in(tap, shape, number), self.dump.shapes[self.parts[tap][number]]
        whole, one = (move_between(found, it) for it in (wanted, self.of_one_row(tap, wanted)))
        return whole is None and one is not None

    def own_rows(self, tap: str, shape: Shape, number: int) -> Shape:
        """Return the shape that a pass should have: of its last token alone, if it is so short."""
        wanted, short = self.shape_in(tap, shape, number), tap in self.last
        short = short and self.is_short(tap, shape, number)
        return self.of_one_row(tap, wanted) if short else wanted

    def shape_in(self, tap: str, shape: Shape, number: int) -> Shape:
        """Return the shape of a tap in one pass; its keys are those of all passes so far."""
        found = list(shape)
        for place, axis in enumerate(self.axes[tap]):
            found[axis] = sum(self.lengths[: number + 1]) if place else self.lengths[number]
        return tuple(found)

    def filled_up(self, tap: str, value: np.ndarray, wanted: Shape, shape: Shape) -> np.ndarray:
        """Make room for what a pass did not compute: tokens before its last, keys after it."""
        before, *after = self.axes[tap]
        room = [(0, 0)] * value.ndim
        room[before] = (wanted[before] - value.shape[before], 0)
        for axis in after:
            room[axis] = (0, shape[axis] - value.shape[axis])
        return np.pad(value, room)

    def of_one_row(self, tap: str, wanted: Shape) -> Shape:
        """Return a shape with one token in the place of many."""
        axis = self.axes[tap][0]
        return (*wanted[:axis], 1, *wanted[axis + 1 :])

    def fits(self, tap: str, shape: Shape, number: int) -> bool:
        found = self.dump.shapes[self.parts[tap][number]]
        return move_between(found, self.own_rows(tap, shape, number)) is not None

    def misfit(self, tap: str, shape: Shape) -> tuple[str, Shape, Shape]:
        """Return the first tensor of a tap that is not as it should be: name, its shape, ours."""
        for number, name in enumerate(self.parts.get(tap, ())):
            if not self.fits(tap, shape, number):
                return name, self.dump.shapes[name], self.shape_in(tap, shape, number)
        return self.names[tap], self.dump.shapes[self.names[tap]], shape

    def with_last_rows(self, graph: Graph) -> Joined:
        """Find the taps, from one on to the logits, that are of the last tokens of passes alone.

        Who generates needs no more: not the logits, nor what keeps no keys before them.
        """
        found: dict[str, str | None] = {}
        taps = sorted(self.parts, key=graph.taps.__getitem__, reverse=True)
        for number, same in groupby(taps, key=graph.taps.__getitem__):
            shape, twins = graph.shapes[number], [*same]
            whole = next((tap for tap in twins if self.is_whole(tap, shape)), None)
            short = [tap for tap in twins if self.short_passes(tap, shape)]
            found |= dict.fromkeys(short, whole)
            if whole or not short:
                break
        beside = {tap: whole for tap, whole in found.items() if whole}
        return replace(self, last=frozenset(found), beside=beside)

    def is_whole(self, tap: str, shape: Shape) -> bool:
        """Say whether a tap has all tokens of all passes."""
        return all(self.fits(tap, shape, number) for number in range(len(self.lengths)))

    def short_passes(self, tap: str, shape: Shape) -> list[int]:
        """Return the passes that have one token under a tap, where they had several."""
        every = range(len(self.lengths))
        return [number for number in every if self.is_short(tap, shape, number)]


def joined(sides: Alignment, graph: Graph, fed: Fed, *, beside: Collection[str] = ()) -> Joined:
    """Put the passes of a dump together. What is not in all of them is left out, and said.

    `beside` are caches that are read elsewhere: of them alone nothing need be put together.
    Raises: InputError if no tap is in the prompt and in every step.
    """
    axes = {tap: graph.token_axes[number] for tap, number in graph.taps.items()}
    steps = [f"step.{number}/" for number in range(1, len(fed.lengths))]
    parts, names, partial = {}, {}, dict[str, None]()
    caches: dict[str, dict[int, str]] = {}
    for tap, name in sides.names.items():
        step, path = parted(tap)
        if path.endswith(CACHED):
            caches.setdefault(path, {})[step_of(tap)] = name
            continue
        if path not in axes:
            names.setdefault(path, name)  # of all passes, one says that it is no tap
            continue
        every = [sides.names.get(prefix + path) for prefix in ("", *steps)]
        if not all(every):
            partial[path] = None
        elif not step:
            names[tap], parts[tap] = name, tuple(map(str, every))
    known: dict[str, Any] = vars(sides) | {"names": names}
    whole = Joined(**known, lengths=fed.lengths, axes=axes, parts=parts, caches=caches)
    whole = whole.with_last_rows(graph)
    short = [tap for tap in parts if steps and of_other_keys(whole, tap, graph)]
    if steps and not set(parts) - set(short) and not caches and not beside:
        where = f"the first that is not is {show(next(iter(partial)), 48)}" if partial else None
        raise InputError(sides.dump.path, "no tap is in the prompt and in every step", where)
    kept = {tap: name for tap, name in names.items() if tap not in short}
    kept |= {tap: found[max(found)] for tap, found in caches.items()}
    told = (
        *told_of(partial, "not in every step, and not judged"),
        *told_of(short, "of other keys in every step, and not judged"),
        *told_of_last(whole, graph),
    )
    not_judged = frozenset((*partial, *short))
    return replace(whole, names=kept, told=(*sides.told, *told), not_judged=not_judged)


def of_other_keys(sides: Joined, tap: str, graph: Graph) -> bool:
    """Say whether a tap of keys cannot be put together: scores, which later keys have none of, and
    probabilities over the keys alone that a window's cache holds, in whatever order.
    """
    shape, passes = graph.shapes[graph.taps[tap]], range(1, len(sides.lengths))
    if len(sides.axes[tap]) < 2 or not sides.fits(tap, shape, 0):
        return False
    return tap.endswith(".scores") or not all(sides.fits(tap, shape, one) for one in passes)


def told_of_last(sides: Joined, graph: Graph) -> list[str]:
    """Return lines on the taps that have the last tokens of passes alone."""
    shapes = graph.tap_shapes
    later = [tap for tap in sides.last if any(sides.short_passes(tap, shapes[tap]))]
    return [
        *told_of(sides.last.difference(later), "of the prompt's last token alone, in its pass"),
        *told_of(later, "of the last token alone, in passes of several"),
    ]


def told_of(taps: Iterable[str], what: str) -> list[str]:
    """Return a line on what some taps are, none if there are none."""
    found = sorted(taps)
    if len(found) < 2:
        return [f"{tap} is {what}" for tap in found]
    return [f"{len(found)} taps are {what}, such as {found[0]}"]


def unseen_rows(sides: Joined, graph: Graph) -> dict[int, np.ndarray]:
    """Return of each value the tokens (B, T) that the port did not compute, or that fill up."""
    shapes = graph.tap_shapes
    rows = {graph.taps[tap]: sides.left_out(tap, shapes[tap])[None] for tap in sides.unknown}
    if graph.pads is None:
        return rows
    return {number: graph.pads | rows.get(number, False) for number in range(len(graph.calls))}


def fill_up(
    trial: Trial, last: Iterable[str], values: Sequence[MutableMapping[Any, np.ndarray]]
) -> None:
    """Let tokens that the port did not compute be what follows from its own values.

    `last` are taps of passes' last tokens, `values` those by number, and second ones by tap.
    Nothing is judged there, but later ones are computed from it.
    """
    for tap in sorted(last, key=trial.graph.taps.__getitem__):
        number = trial.graph.taps[tap]
        keys = {number, *trial.graph.calls[number].taps}
        right = trial.centre(None).target(number)
        mark = trial.marked(number, right)
        for some in values:
            for key in keys & some.keys():
                if some[key].shape == right.shape:
                    some[key] = np.where(mark, right.astype(some[key].dtype), some[key])
