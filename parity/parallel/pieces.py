"""Values of all ranks made into one of the whole model, and the other way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.reference.checkpoint.parallel.rules import rule_of

Shape = tuple[int, ...]


def put_together(ports: Sequence[np.ndarray], shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what parts of one value may make: their sum, or all of them behind each other.

    What stands behind the last of a padded vocabulary is cut off.
    """
    if all(port.shape == shape for port in ports):
        yield "sum", np.sum([port.astype(np.float64) for port in ports], axis=0)
    heads = {port.shape[:-1] for port in ports}
    total = sum(port.shape[-1] for port in ports if port.ndim)
    if heads == {shape[:-1]} and total >= shape[-1] > max(port.shape[-1] for port in ports):
        yield "behind", np.concatenate(ports, axis=-1)[..., : shape[-1]]


def dealt_along(part: Shape, whole: Shape) -> int | None:
    """Return the one axis along which a part is smaller than the whole, None if there is none."""
    if len(part) != len(whole):
        return None
    axes = [axis for axis, sizes in enumerate(zip(part, whole, strict=True)) if len({*sizes}) > 1]
    return axes[0] if len(axes) == 1 and part[axes[0]] < whole[axes[0]] else None


def joined(path: str, parts: Sequence[np.ndarray], axis: int, size: int) -> np.ndarray | None:
    """Put the parts of all ranks behind each other, `size` in all; None if they do not fit.

    Key heads that neighbours share are taken once; of a matrix made of several each is joined.
    """
    total, rule = sum(part.shape[axis] for part in parts), rule_of(path)
    if total > size and total % size == 0 and len({part.shape for part in parts}) == 1:
        return joined(path, parts[:: total // size], axis, size)
    if total != size:
        return None
    segments = 1 if rule is None else rule.segments
    each = [np.split(part, segments, axis=axis) for part in parts]
    return np.concatenate([one[place] for place in range(segments) for one in each], axis=axis)


def taken_apart(
    path: str, port: np.ndarray, parts: Sequence[np.ndarray], rank: int
) -> np.ndarray | None:
    """Return a rank's part of a value that it has all of; None if it has not.

    `parts` says how large each rank's is.
    """
    axis = dealt_along(parts[rank].shape, port.shape)
    if axis is None:
        return None
    index = np.arange(port.shape[axis])
    numbered = [index[: part.shape[axis]] for part in parts]
    rule, total = rule_of(path), sum(map(len, numbered))
    segments, own = 1 if rule is None else rule.segments, len(numbered[rank])
    if total % len(index) == 0 and total > len(index):  # neighbours share one
        first = rank * len(index) // len(parts) // own * own
        return port.take(index[first : first + own], axis=axis)
    if total != len(index):
        return None
    before, wide = sum(map(len, numbered[:rank])) // segments, len(index) // segments
    chosen = [index[part * wide + before :][: own // segments] for part in range(segments)]
    return port.take(np.concatenate(chosen), axis=axis)
