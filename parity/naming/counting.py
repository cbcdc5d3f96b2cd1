"""From what a port counts its layers, where its dump has some of them: by names that say it.

Ours are counted from 0. The number in a name says nothing by itself: `h_in.0` is no layer, and
`blocks.4` may be the stream behind the last of four, as `blocks.0` may be the embeddings. So parts
that all layers have say it first; then parts of some, behind a word for layers; and streams only
where there are no parts.
"""

from collections.abc import Callable, Sequence

from lockstep.parity.naming.families import Family, Shape

Fits = Callable[[Shape, Shape], bool]
FIRSTS = (0, 1)


def counted_from(pairs: Sequence[tuple[Family, Family]], fits: Fits, *, zero: bool) -> int | None:
    """Return the number of their first layer, 0 or 1; None if nothing says it, or both.

    `pairs` are families of theirs with those of ours that their words mean. `zero`: names of ours
    are among theirs, so that only 0 can be.
    """
    layered = [(found, wanted, first) for found, wanted in pairs if found.layered
               for first in FIRSTS if all_fit(found, wanted, first, fits)]  # fmt: skip
    whole = [(found, first) for found, wanted, first in layered if is_whole(found, wanted, first)]
    part = {
        first
        for found, wanted, first in layered
        if found.named and found.words and not is_within(found, wanted, 1 - first)
    }
    spoken = {first for found, first in whole if found.words}
    streams = {first for found, first in whole if not any(one.words for one, *_ in layered)}
    for told in (spoken, part, streams):
        if told:
            return min(told) if len(told) == 1 and not (zero and 1 in told) else None
    return None


def counted_alike(left: Sequence[Family], right: Sequence[Family]) -> int:
    """Return 1 if theirs have as many layers as ours, none of them 0; otherwise 0."""
    theirs = {number for one in left if one.layered for number in one.shapes}
    ours = {number for one in right if one.layered for number in one.shapes}
    return int(bool(ours) and theirs == {number + 1 for number in ours})


def is_whole(found: Family, wanted: Family, first: int) -> bool:
    """Tell whether their family has the layers of ours, counted from `first`."""
    return found.layered == wanted.layered and found.shapes.keys() == numbers(wanted, first)


def is_within(found: Family, wanted: Family, first: int) -> bool:
    """Tell whether their family has no layers but those of ours."""
    return found.layered == wanted.layered and found.shapes.keys() <= numbers(wanted, first)


def numbers(wanted: Family, first: int) -> set[int]:
    return {number + first * wanted.layered for number in wanted.shapes}


def all_fit(found: Family, wanted: Family, first: int, fits: Fits) -> bool:
    """Tell whether every shape fits that of the same layer; not if ours lacks one."""
    first *= found.layered
    return is_within(found, wanted, first) and all(
        fits(shape, wanted.shapes[number - first]) for number, shape in found.shapes.items()
    )
