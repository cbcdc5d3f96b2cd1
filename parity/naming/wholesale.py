"""Names of taps that all differ from ours in one way: a wrapper before them, layers from 1."""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from lockstep.parity.naming.align import Shape, move_between
from lockstep.parity.naming.names import is_tap, parted, unwrapped

LAYER = re.compile(r"(model\.layers|transformer\.h)\.(0|[1-9][0-9]{0,5})(.*)", re.DOTALL)
SEPARATORS = re.compile(r"[./]")
WRAPPERS = 8  # how many parts what stands before all names may have
HEADED = ".probs"  # of each head, (B, H, L, S)


def without_wrapper(names: Iterable[str]) -> dict[str, str]:
    """Return each name without what stands before all of them, if most are taps then, and none yet.

    `net.model.norm` is `model.norm` where every name begins with `net.`.
    """
    paths = {name: parted(name)[1] for name in names}
    if not paths or any(is_tap(unwrapped(path)) for path in paths.values()):
        return {}
    one, last = min(paths.values()), max(paths.values())  # what begins both begins all
    ends = (found.end() for found in SEPARATORS.finditer(one))
    for end in islice((end for end in ends if last.startswith(one[:end])), WRAPPERS):
        rest = {name: path[end:] for name, path in paths.items()}
        if 2 * sum(is_tap(unwrapped(path)) for path in rest.values()) > len(rest):
            return rest
    return {}


def counted_from_1(taps: Iterable[str], known: Collection[str]) -> bool:
    """Say whether the layers of taps are counted from 1.

    They are if none is of layer 0, some part is of all others and of the one behind the last, and
    none is beyond that.
    """
    layers = {int(found[2]) for found in map(LAYER.fullmatch, known) if found}
    parts: dict[str, set[int]] = {}
    for match in filter(None, (LAYER.fullmatch(tap) for tap in taps if is_tap(tap))):
        parts.setdefault(match[3], set()).add(int(match[2]))
    shifted = {number + 1 for number in layers}
    whole = bool(layers) and any(numbers == shifted for numbers in parts.values())
    return whole and all(numbers <= shifted for numbers in parts.values())


def from_0(path: str) -> str:
    """Return the path of a layer's module with one less for its number; any other as it is."""
    one = LAYER.fullmatch(path)
    return f"{one[1]}.{int(one[2]) - 1}{one[3]}" if one and one[2] != "0" else path


def over_heads(
    taps: Mapping[str, str], shapes: Mapping[str, Shape], known: Mapping[str, Shape]
) -> list[str]:
    """Return the names of probabilities that have one matrix for all heads."""
    return [
        name for name, tap in taps.items()
        if tap in known and tap.endswith(HEADED) and is_over_heads(shapes[name], known[tap])
    ]  # fmt: skip


def is_over_heads(found: Shape, wanted: Shape) -> bool:
    """Tell whether a tensor lacks the axis of heads alone; with 1 there it may be one head's."""
    without = (wanted[:1] + wanted[2:], wanted[2:])
    return move_between(found, wanted) is None and found in without
