"""Which taps to write whole next: those that are wrong first, and what is read to make them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.names import parted

Reads = Mapping[str, Sequence[str]]  # the taps that the operation of a tap reads
LAYER = re.compile(r"((?:model\.layers|transformer\.h)\.)([0-9]+)(?:\..*)?")
FIRST = {"model.layers.": ("model.embed_tokens",), "transformer.h.": ("transformer.*",)}


def suspects_of(result: Result, reads: Reads | None) -> list[str]:
    """Return the names to write whole, in the order of computation; none if nothing is wrong."""
    wrong = [tap for tap in result.taps if tap.status == "differs"]
    if not wrong:
        return []
    step = parted(wrong[0].name)[0]
    of_pass = [tap for tap in result.taps if parted(tap.name)[0] == step]
    if reads is None:
        return of_layer(wrong[0], of_pass)
    bad = {parted(tap.name)[1] for tap in wrong if parted(tap.name)[0] == step}
    compared = {parted(tap.name)[1] for tap in of_pass if tap.status != "not judged"}
    first = [name for name in reads if name in bad and not bad & {*near(name, reads, compared)}]
    chosen = {*first, *(one for name in first for one in near(name, reads, compared))}
    return [name for name in reads if name in chosen] or of_layer(wrong[0], of_pass)


def near(name: str, reads: Reads, compared: set[str]) -> list[str]:
    """Return the nearest taps before one that both sides have, looking through the others."""
    found, waiting, seen = dict[str, None](), [*reads.get(name, ())], {name}
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one in compared:
            found[one] = None
        else:
            waiting += reads.get(one, ())
    return [*found]


def of_layer(first: Tap, taps: Sequence[Tap]) -> list[str]:
    """Return what is computed in the layer of a tap up to it, and what the layer reads.

    Without a model nobody knows what an operation reads, but it is among these.
    """
    path = parted(first.name)[1]
    names = [parted(tap.name)[1] for tap in taps]
    before = names[: names.index(path) + 1]
    found = LAYER.fullmatch(path)
    if found is None:
        return before[-2:]
    stem, number = found[1], int(found[2])
    source = [f"{stem}{number - 1}"] if number else [*FIRST[stem]]
    own = f"{stem}{number}"
    return source + [name for name in before if name == own or name.startswith(f"{own}.")]
