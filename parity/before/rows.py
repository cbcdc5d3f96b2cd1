"""In which order the rows of one matrix stand in another, and what that order tells."""

from collections.abc import Iterator

import numpy as np

from lockstep.parity.before.pairs import Pair, Verdict


def order_of_rows(found: np.ndarray, wanted: np.ndarray) -> list[int] | None:
    """Return the row of `wanted` that each row of `found` is, None if it is no permutation.

    None also where nothing was moved. Equal rows keep their order, so that what need not have
    been moved was not.
    """
    if found.shape != wanted.shape or not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return None
    places: dict[bytes, set[int]] = {}
    for place, row in enumerate(np.ascontiguousarray(wanted + 0.0)):
        places.setdefault(row.tobytes(), set()).add(place)
    order = []
    for place, row in enumerate(np.ascontiguousarray(found + 0.0)):
        free = places.get(row.tobytes())
        if not free:
            return None
        free.remove(chosen := place if place in free else next(iter(free)))
        order.append(chosen)
    return None if order == list(range(len(order))) else order


def rows_permuted(both: Pair) -> Verdict | None:
    """The same rows in another order: what the order is tells the cause."""
    if both.x.shape != both.y.shape or both.y.ndim not in (1, 2) or len(both.y) < 2:
        return None
    order = order_of_rows(*(values.reshape(len(values), -1) for values in (both.x, both.y)))
    return None if order is None else row_verdict(both, np.array(order))


def row_verdict(both: Pair, order: np.ndarray) -> Verdict:
    """Say what an order of rows is: heads interleaved, halves, or no order that is known."""
    rows = len(order)
    for heads, into in interleavings(order):
        return interleaved(both, heads, into)
    if "gate_up" in both.name:
        text = f"its rows are ours in another order; row 1 is our {order[1]}"
        return Verdict("rows permuted", None, text, "put gate above up")
    if ("qkv" in both.name or "c_attn" in both.name) and in_blocks(order):
        text = f"row {first_moved(order)} is our row {order[first_moved(order)]} of {rows}"
        return Verdict("rows permuted", "fused-qkv-layout", text, "split it as ours is laid out")
    text = f"row {first_moved(order)} is our row {order[first_moved(order)]}, in no known order"
    return Verdict("rows permuted", None, text, "put the rows in order")


def in_blocks(order: np.ndarray) -> bool:
    """Tell whether whole blocks of neighbouring rows were moved, such as heads."""
    starts = np.flatnonzero(np.diff(order) != 1) + 1
    return len(starts) > 0 and int(np.gcd.reduce(np.append(starts, len(order)))) > 1


def first_moved(order: np.ndarray) -> int:
    return int(np.flatnonzero(order != np.arange(len(order)))[0])


def interleavings(order: np.ndarray) -> Iterator[tuple[int, bool]]:
    """Yield the number of heads in which rows were interleaved (True), or parted (False)."""
    rows = len(order)
    for heads in (h for h in range(1, rows // 4 + 1) if rows % (2 * h) == 0):
        places = np.arange(rows).reshape(heads, 2, -1)
        if np.array_equal(order, places.swapaxes(1, 2).reshape(-1)):
            yield heads, True
        places = np.arange(rows).reshape(heads, -1, 2)
        if np.array_equal(order, places.swapaxes(1, 2).reshape(-1)):
            yield heads, False


def interleaved(both: Pair, heads: int, into: bool) -> Verdict:
    way = "interleaved, as ropes that turn neighbours want it" if into else "parted into halves"
    text = f"its rows are {way}, in {heads} heads"
    if "gate_up" in both.name:
        fault = "gate-up-interleaved-split"
        return Verdict("rows permuted", fault, text, "split gate and up as ours are laid out")
    if both.heads is None:
        return Verdict("rows permuted", None, text, "put the rows in order")
    right, other = both.heads
    if heads == right:
        note = f"{text}: right if q and k both are, and the rope is of that kind"
        return Verdict("rope layout", None, note, "nothing, or undo it for both", harmless=True)
    fault = "rope-unpermute-gqa" if heads in (other, other // right, right // other) else None
    return Verdict("rows permuted", fault, f"{text}, but it has {right}", f"permute {right} heads")
