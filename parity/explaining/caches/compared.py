"""What a port's caches hold after each pass, held against what they should hold.

Each slot is recognised as a token of the text by its numbers. Where all tokens are there that a
layer still needs, what is in the slots becomes a dump of the keys and values themselves, and is
judged as any other; else the bug that leaves such a cache behind is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.caches.bugs import Bug, Pass, bug_of
from lockstep.parity.explaining.caches.found import Arrays, Cached, accuse, name_of
from lockstep.parity.explaining.caches.layouts import (
    Layout,
    is_flat,
    laid_out,
    layouts_of,
    repeated,
    unmixed,
)
from lockstep.parity.explaining.caches.numbers import grows, hand_on, judge_numbers
from lockstep.parity.explaining.caches.slots import (
    CLOSE,
    Content,
    contents,
    distances,
)
from lockstep.parity.explaining.caches.taps import Kept, kept_in
from lockstep.parity.explaining.said.diagnosis import Unexplained
from lockstep.parity.explaining.steps.whereabouts import of_steps
from lockstep.parity.graph.stretched import turn_of

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

HEADS, MIXED, OTHER, TURNED = (
    "kv-head-count-in-cache", "kv-axes-mixed", "kv-of-other-layer", "rope-on-cached-keys-again",
)  # fmt: skip
OF_HEADS = {"zeros": "query heads read their own number, and zeros beyond",
            "again": "query heads read their number mod key heads"}  # fmt: skip
EACH = "caches hold each key head as often as queries read it"
SWAPPED = "caches hold heads behind tokens, (B, S, H, D)"
UNTURNED = "caches hold keys as they are before their turn"
RING = "caches of sliding layers hold tokens in the order of a ring"
MOST_SLOTS = 12  # that are listed
FEW = 8  # slots that tell whether others are worth a look


def read_caches(case: Case) -> Cached:
    """Judge the caches of every layer, and hand what they hold to the rest of `explain`."""
    found, kept = Cached(), kept_in(case.graph)
    for layer in sorted({kept[tap].layer for tap in case.sides.caches if tap in kept}):
        parts = [part for tap, part in kept.items()
                 if part.layer == layer and tap in case.sides.caches]  # fmt: skip
        arrays: Arrays = {}
        layouts = layouts_in(parts, case)
        for part in parts:
            read(part, layouts.get(part.tap), case, arrays, found)
        if arrays:
            found.compared |= arrays.keys()
            judge([part for part in parts if part.tap in arrays], arrays, kept, case, found)
    case.trial.forget()
    return found


def layouts_in(parts: Sequence[Kept], case: Case) -> dict[str, Layout]:
    """Return the layout of each tensor: one for all passes, and for keys and values if there is."""
    own = {part.tap: layouts_of(shapes_of(part, case), *axes_of(part, case)) for part in parts}
    both = [one for one in own[parts[0].tap] if all(one in some for some in own.values())]
    if both:
        seen = {one: sum(likeness(part, one, case) for part in parts)
                for one in both} if len(both) > 1 else dict.fromkeys(both, 0.0)  # fmt: skip
        return dict.fromkeys(own, max(both, key=seen.__getitem__))
    return {
        part.tap: max(own[part.tap], key=lambda one, part=part: likeness(part, one, case))
        for part in parts if own[part.tap]
    }  # fmt: skip


def shapes_of(part: Kept, case: Case) -> list[tuple[int, ...]]:
    return [tuple(case.sides.dump.shapes[name]) for name in case.sides.caches[part.tap].values()]


def axes_of(part: Kept, case: Case) -> tuple[int, list[int], int]:
    """Return how many rows there are, how many heads there may be, and how wide they are."""
    batch, groups, _, width = case.graph.shapes[part.number]
    return batch, [*dict.fromkeys((groups, part.heads))], width


@np.errstate(all="ignore")
def likeness(part: Kept, layout: Layout, case: Case) -> float:
    """Return how much a tensor is like its tokens, so laid out: the sum over slots, each to 1."""
    axes = axes_of(part, case)
    truth, ends, found = right(part.number, case), np.cumsum(case.sides.lengths), 0.0
    for step, name in case.sides.caches[part.tap].items():
        x = laid_out(case.sides.dump.read(name), layout, *axes)
        x = x[:, :: x.shape[1] // axes[1][0]][:, : axes[1][0]]
        for far in distances(x, truth[:, :, : ends[step]]):
            found += float(np.maximum(1 - np.nan_to_num(far, nan=1.0).min(axis=2), 0).sum())
    return found


def read(part: Kept, layout: Layout | None, case: Case, arrays: Arrays, found: Cached) -> None:
    """Read one tensor after every pass; what has no axes of heads is left out, and said."""
    batch, counts, width = axes_of(part, case)
    groups, some, bugs = counts[0], {}, {}
    for step, name in case.sides.caches[part.tap].items():
        array, one = case.sides.dump.read(name), layout
        fitting = layouts_of([array.shape], *axes_of(part, case))
        if one is None and fitting:  # no one layout for all passes
            one = fitting[0]
        said = f"shape {list(array.shape)}, but should be [{batch}, {groups}, S, {width}]"
        x = None if one is None else laid_out(array, one, batch, counts, width)
        heads = "" if x is None or x.shape[1] == groups else repeated(x, groups)
        if x is not None and array.dtype.kind in "iubc":
            said = f"dtype {array.dtype}, but should be one of floating point"
        elif x is not None and (heads or x.shape[1] == groups):
            said = ""
        if x is None or said:
            found.open.append(Unexplained(name, 1.0, 0.0, said))
            return
        if heads == "each":
            found.told[EACH] = None
        elif heads:
            bugs.setdefault(heads, step)
        if one is not None and one.behind and not is_flat(array.shape, batch, counts, width):
            found.told[SWAPPED] = None
        times = part.heads // groups if heads == "each" else 1
        some[step] = x[:, ::times][:, :groups]
    for heads, step in bugs.items():
        accuse(Bug(HEADS, OF_HEADS[heads]), [part], case, found, step=step)
    arrays[part.tap] = some


def judge(
    parts: Sequence[Kept],
    arrays: Arrays,
    kept: Mapping[str, Kept],
    case: Case,
    found: Cached,
) -> None:
    """Find the tokens in the slots of one layer, and say what is wrong there."""
    rights = {part.tap: right(part.number, case) for part in parts}
    content = contents_of(arrays, rights, case)
    if not any(x.shape[2] for some in arrays.values() for x in some.values()):
        found.open.append(Unexplained(name_of(parts[0], case), 1.0, 0.0, "it has no slots"))
    elif is_known(content) or (not grows(arrays, case) and is_known(content, partly=True)):
        judge_content(parts, arrays, rights, content, case, found)
    elif is_known(contents_of(mixed(arrays), rights, case)):
        accuse(Bug(MIXED, ""), parts, case, found)
    elif (bug := bug_elsewhere(parts, arrays, kept, case)) is not None:
        accuse(bug, parts, case, found)
    elif is_known(contents_of(arrays, before_turn(parts, rights, case), case)):
        found.told[UNTURNED] = None
    elif grows(arrays, case):
        last = {part.tap: arrays[part.tap][max(arrays[part.tap])] for part in parts}
        hand_on(parts, last, case, found)
    else:
        said = "what its slots hold is no token of the text, nor the same from pass to pass"
        found.open.append(Unexplained(name_of(parts[0], case), 1.0, 0.0, said))


def right(number: int, case: Case) -> np.ndarray:
    """Return what should be stored of all tokens, from the port's nearest values."""
    known = case.dumped.get(number)
    return case.trial.centre(None).target(number) if known is None else known


def mixed(arrays: Arrays) -> Arrays:
    return {tap: {step: unmixed(x) for step, x in some.items()} for tap, some in arrays.items()}


def before_turn(
    parts: Sequence[Kept], rights: Mapping[str, np.ndarray], case: Case
) -> dict[str, np.ndarray]:
    """Return the same, with keys that are not turned."""
    calls = {part.tap: case.graph.calls[part.number] for part in parts}
    return {
        tap: right(case.graph.source(call, 0).number, case) if call.op == "rope" else rights[tap]
        for tap, call in calls.items()
    }


def turned_again(part: Kept, times: int, case: Case) -> np.ndarray:
    """Return keys that were turned some more times."""
    call = case.graph.calls[part.number]
    new, turn = call, turn_of(call)
    for _ in range(times):
        new = new.with_changed(0, lambda ops, *x: turn(ops, *x), *call.inputs[1:3])
    return case.trial.centre(None).target(part.number, {part.number: new})


def bug_elsewhere(
    parts: Sequence[Kept], arrays: Arrays, kept: Mapping[str, Kept], case: Case
) -> Bug | None:
    """Look for the slots among the keys of other layers, and among keys turned once more."""
    suffixes = [part.tap.rpartition(".")[2] for part in parts]
    layer, few = parts[0].layer, a_few(arrays)
    for other in sorted({one.layer for one in kept.values()} - {layer}):
        theirs = {one.tap.rpartition(".")[2]: one.number
                  for one in kept.values() if one.layer == other}  # fmt: skip
        if not theirs.keys() >= set(suffixes):
            continue
        numbers = {part.tap: theirs[suffix] for part, suffix in zip(parts, suffixes, strict=True)}
        shapes = case.graph.shapes
        if any(shapes[numbers[part.tap]] != shapes[part.number] for part in parts):
            continue
        rights = {tap: right(number, case) for tap, number in numbers.items()}
        if any(one.tokens for rows in contents_of(few, rights, case).values() for one in rows) and (
            is_known(contents_of(arrays, rights, case), partly=True)
        ):
            return Bug(OTHER, whose(other, layer))
    keys = [part for part in parts if case.graph.calls[part.number].op == "rope"]
    if keys and is_known(contents_of(only(arrays, keys), {
        part.tap: turned_again(part, 1, case) for part in keys}, case)):  # fmt: skip
        return Bug(TURNED, "once more")
    return None


def whose(other: int, layer: int) -> str:
    """Say which layer another one is, as the catalogue does; nothing if it has no word for it."""
    if other == 0:
        return "the first layer"
    return "the layer before" if other == layer - 1 else ""


def a_few(arrays: Arrays) -> Arrays:
    """Return a few slots of the last pass, which tell cheaply whether all are worth a look."""
    step = max(set.intersection(*(set(some) for some in arrays.values())), default=None)
    if step is None:
        return {}
    filled = np.flatnonzero(next(iter(arrays.values()))[step][0].any(axis=(0, 2)))
    chosen = filled[np.linspace(0, len(filled) - 1, min(len(filled), FEW)).astype(int)]
    least = min(some[step].shape[2] for some in arrays.values())
    chosen = chosen[chosen < least]
    return {tap: {step: some[step][:, :, chosen]} for tap, some in arrays.items()}


def only(arrays: Arrays, parts: Sequence[Kept]) -> Arrays:
    return {part.tap: arrays[part.tap] for part in parts}


@np.errstate(all="ignore")
def contents_of(
    arrays: Arrays, rights: Mapping[str, np.ndarray], case: Case
) -> dict[int, list[Content]]:
    """Find the tokens in the slots after each pass, by keys and values at once, row by row."""
    ends, pads = np.cumsum(case.sides.lengths), case.graph.pads
    found: dict[int, list[Content]] = {}
    for step in sorted(set.intersection(*(set(some) for some in arrays.values()))):
        end = int(ends[step])
        some = [arrays[tap][step] for tap in arrays]
        if len({x.shape[2] for x in some}) > 1:
            return {}
        each = [distances(arrays[tap][step], rights[tap][:, :, :end]) for tap in arrays]
        far = (np.max(one, axis=0) for one in zip(*each, strict=True))
        zeros = np.all([~x.any(axis=(1, 3)) for x in some], axis=0)
        known = np.ones((len(zeros), end), bool) if pads is None else ~pads[:, :end]
        found[step] = contents(far, zeros, known, CLOSE)
    return found


def is_known(content: Mapping[int, Sequence[Content]], *, partly: bool = False) -> bool:
    """Say whether all that lies in the slots is known, or most of it."""
    every = [row for rows in content.values() for row in rows]
    tokens, strange = sum(len(row.tokens) for row in every), sum(row.strange for row in every)
    return tokens > strange if partly else tokens > 0 and not strange


def judge_content(
    parts: Sequence[Kept],
    arrays: Arrays,
    rights: Mapping[str, np.ndarray],
    content: Mapping[int, list[Content]],
    case: Case,
    found: Cached,
) -> None:
    """Say of slots that are known whether they are those that there should be."""
    rows = [
        passes(row, parts[0].window, content, case)
        for row in range(len(next(iter(rights.values()))))
    ]
    wrong = [(row, some) for row, some in enumerate(rows) if not all(one.right for one in some)]
    if not wrong:
        if any(one.tokens != sorted(one.tokens) for some in content.values() for one in some):
            found.told[RING] = None
        for part in parts:
            judge_numbers(part, arrays, rights, content, case, found)
        return
    row, some = wrong[0]
    bug, where = bug_of(some, case.faults.values()), place(some, row, len(wrong), len(rows))
    at = next(at for at, one in enumerate(some) if not one.right)
    step = [*content][at]
    if bug is not None and bug.id in case.faults:
        accuse(bug, parts, case, found, where=where, step=step)
        return
    said, name = in_slots(some[at].content), name_of(parts[0], case, step)
    found.open.append(Unexplained(name, 1.0, 0.0, said, "", where))


def passes(
    row: int, window: int | None, content: Mapping[int, list[Content]], case: Case
) -> list[Pass]:
    """Return what one row's cache holds after each pass, its tokens counted without padding."""
    lengths, pads = case.sides.lengths, case.graph.pads
    real = np.ones(sum(lengths), bool) if pads is None else ~pads[row]
    own, ends = np.cumsum(real), np.cumsum(lengths)
    counted = {place: int(own[place]) - 1 for place in range(len(own))}
    found = []
    for step, rows in content.items():
        slots = tuple(counted.get(one, one) for one in rows[row].slots)
        begins = 0 if not step else int(own[ends[step - 1] - 1])
        found.append(Pass(begins, int(own[ends[step] - 1]), int(own[ends[0] - 1]), window,
                          Content(slots, rows[row].end)))  # fmt: skip
    return found


def place(some: Sequence[Pass], row: int, wrong: int, rows: int) -> str:
    """Say which row, and which steps, hold what they should not."""
    whose = f"in row {row}" if wrong == 1 and rows > 1 else ""
    first, *later = [not one.right for one in some]
    steps = "" if first or not any(later) else of_steps(later)
    return " ".join(filter(None, (whose, steps)))


def in_slots(content: Content) -> str:
    """Say what lies in the slots, as far as it is known."""
    words = {-1: "nothing", -2: "no token of the text", -3: "padding"}
    slots = content.slots[: max(len(content.before), content.end)]
    listed = [words.get(one, str(one)) for one in slots[:MOST_SLOTS]]
    more = " ..." if len(slots) > MOST_SLOTS else ""
    return f"its slots hold tokens {', '.join(listed)}{more}"
