"""What may have been done to one tensor: each way is tried, and taken only if it fits exactly."""

import math
from collections.abc import Callable

import numpy as np

from lockstep.parity.before.figures import (
    STEPS,
    bfloat16,
    figures,
    gain,
    grid,
    identical,
    near,
    rms,
    wide,
)
from lockstep.parity.before.pairs import Pair, Verdict
from lockstep.parity.before.rows import order_of_rows, rows_permuted

SAME_ENOUGH = 0.3
RESHAPED = "its numbers were poured into the other shape; transpose instead of reshaping"


def judged(both: Pair) -> Verdict | None:
    """Return what is otherwise with a tensor, None if nothing is."""
    if identical(both.x, both.y):
        return converted(both)
    for hypothesis in HYPOTHESES:
        if (verdict := hypothesis(both)) is not None:
            return verdict
    return None if both.x.size == 0 else unknown(both)


def converted(both: Pair) -> Verdict | None:
    """Tell values that went through a coarser dtype on one side; widening loses nothing."""
    if identical(wide(both.found), wide(both.wanted)):
        return None
    if STEPS[grid(both.found)] > STEPS[grid(both.wanted)]:
        text = f"its values are ours, rounded to {both.dtype}"
        return Verdict("rounded", None, text, f"compare with --dtype {both.dtype}", harmless=True)
    text = f"ours are its values, rounded to {both.dtype}: the checkpoint was made coarser"
    return Verdict("finer", None, text, "round them alike, or take that checkpoint", harmless=True)


def unknown(both: Pair) -> Verdict:
    if both.x.shape != both.y.shape:
        text = f"its shape is {both.x.shape}, and ours {both.y.shape}"
        return Verdict("other shape", None, text, "see how its rows and columns are laid out")
    measured = figures(both.x, both.y)
    what = (
        f"{measured['rows_apart']} of {measured['rows']} rows differ, error "
        f"{shown(measured['error'])} of ours, correlation "
        f"{measured['correlation']:.4f}, gain {measured['gain']:.4g}"
    )
    if measured["not_finite"]:
        what += f", {measured['not_finite']} values are not finite"
    return Verdict("unknown difference", None, what, "no known fault fits it", figures=measured)


def shown(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.2g}"


def constant(both: Pair) -> Verdict | None:
    """All zeros, or all ones: what a module holds before anything is loaded."""
    value = both.x.flat[0] if both.x.size else math.nan
    if value not in (0, 1) or (both.x != value).any() or (both.y == value).all():
        return None
    text = f"all its values are {value:g}, as before loading"
    return Verdict("not loaded", "strict-false-drops-tensors", text, "load it; fail on names left")


def reinterpreted(both: Pair) -> Verdict | None:
    """Bits of one 16-bit format read as the other."""
    kinds = ("float16", "bfloat16")
    own = both.wanted.dtype.name
    if own not in kinds or both.found.shape != both.wanted.shape:
        return None
    other = kinds[own == "float16"]
    dtype = np.dtype(other) if other == "float16" else bfloat16()
    read = wide(np.ascontiguousarray(both.wanted).view(dtype))
    if not identical(wide(both.found), read):
        return None
    text = f"its values are the bits of {own} read as {other}"
    return Verdict("wrong dtype", "bf16-read-as-fp16", text, f"read it as {own}")


def turned(both: Pair) -> Verdict | None:
    """Transposed; whether that is a fault is decided over all tensors, where the shape shows it."""
    if both.y.ndim < 2 or both.x.ndim != both.y.ndim:
        return None
    flipped = np.swapaxes(both.y, -1, -2)
    if both.fits(flipped):
        square = both.y.shape[-1] == both.y.shape[-2]
        fault = "weight-square-transposed" if square else None
        text = "it is stored as (inputs, outputs), transposed"
        return Verdict("transposed", fault, text, "transpose it", harmless=not square)
    return None


def other_axes(both: Pair) -> Verdict | None:
    """The same numbers in the same order, with an axis more or fewer."""
    kept = (tuple(size for size in one.shape if size != 1) for one in (both.x, both.y))
    same = len(set(kept)) == 1 or both.x.ndim == 1
    if both.x.shape == both.y.shape or both.x.size != both.y.size or not same:
        return None
    if not both.fits(both.y.reshape(both.x.shape)):
        return None
    text = f"its numbers are ours in their order, as {both.x.shape} instead of {both.y.shape}"
    return Verdict("other axes", None, text, "nothing", harmless=True)


def poured(both: Pair) -> Verdict | None:
    """The numbers in their order under the other shape, or in the other order under the shape."""
    if both.y.ndim != 2 or both.x.size != both.y.size or both.y.shape[0] == both.y.shape[1]:
        return None
    flat = both.y.reshape(-1)
    ways = (flat.reshape(both.x.shape), flat.reshape(both.y.shape[::-1]).T, both.y.T.reshape(-1))
    if both.x.shape == both.y.shape:
        ways = (ways[1], ways[2].reshape(both.y.shape))
    same = any(way.shape == both.x.shape and both.fits(way) for way in ways)
    if not same:
        return None
    embedding = "embed" in both.name or "wte" in both.name
    fault = "gguf-dims-reversed" if both.gguf else "embed-table-transposed" if embedding else None
    return Verdict("reshaped", fault, RESHAPED, "transpose it")


def shifted_by_one(both: Pair) -> Verdict | None:
    """1 added to a norm, or taken away."""
    if both.y.ndim != 1 or both.x.shape != both.y.shape or both.y.std() == 0:
        return None
    for sign, fault in ((1, "norm-plus-one-twice"), (-1, "norm-plus-one-missing")):
        moved = both.y + np.float32(sign)
        if near(both.x, moved, both.dtype) and not near(both.x, both.y, both.dtype):
            again = ", which is right only if its norm adds 1" if sign < 0 else ""
            text = f"{sign:+d} is added to ours everywhere{again}"
            return Verdict("one added", fault, text, "use the norm's weight as it is stored")
    return None


def multiplied(both: Pair) -> Verdict | None:
    """One factor for all of it."""
    if both.x.shape != both.y.shape or not rms(both.y):
        return None
    factor = gain(both.x, both.y)
    if not math.isfinite(factor) or abs(factor) < 1e-6:
        return None
    if not near(both.x, both.y * np.float32(factor), both.dtype):
        return None
    if abs(factor - 1) <= STEPS[both.dtype] / 8:
        return rounded_otherwise(both)
    text = f"it is ours times {factor:.6g}"
    if both.y.std() == 0:
        text += f", or ours plus {both.x.flat[0] - both.y.flat[0]:.6g}: all its values are one"
    if (
        both.scaled
        and "embed_tokens" in both.name
        and abs(factor / math.sqrt(both.width) - 1) < 0.01
    ):
        text += ", the root of the width: the embedding's scale is in the table"
        return Verdict("scale folded", None, text, "a tied head must not use it", harmless=True)
    return Verdict("factor", None, text, f"divide it by {factor:.6g}", figures={"factor": factor})


def cut_off(both: Pair) -> Verdict | None:
    """The upper half of each float32, which is bfloat16 without rounding."""
    bits = wide(both.wanted).view(np.uint32) & np.uint32(0xFFFF0000)
    if not identical(wide(both.found), bits.view(np.float32)):
        return None
    text = "its values are ours, cut to bfloat16 and not rounded"
    return Verdict("rounded", None, text, "round to the nearest", harmless=True)


def rounded_otherwise(both: Pair) -> Verdict | None:
    """Tell what is merely rounded more than once: many values are then still the same."""
    same = float(np.mean(both.x == both.y))
    if same < SAME_ENOUGH or grid(both.found) != both.dtype:
        return None
    text = f"its values are ours, rounded to {both.dtype} otherwise: {same:.0%} are the same"
    return Verdict("rounded", None, text, "nothing", harmless=True)


def halves_swapped(both: Pair) -> Verdict | None:
    """The second half of the rows above the first; of stacks also one by one."""
    rows = both.y.shape[-2] if both.y.ndim > 1 else 0
    if "gate_up" not in both.name or rows % 2 or both.x.shape != both.y.shape:
        return None
    if both.y.ndim == 3:
        parted = both.y.reshape(len(both.y), 2, rows // 2, -1).swapaxes(1, 2)
        if both.fits(parted.reshape(both.y.shape)):
            text = "the rows of gate and up take turns"
            fix = "split gate and up as ours are laid out"
            return Verdict("rows permuted", "gate-up-interleaved-split", text, fix)
    if not both.fits(np.roll(both.y, rows // 2, axis=-2)):
        return None
    text = "the rows of up stand above those of gate"
    return Verdict("halves swapped", "fused-gate-up-order", text, "put gate first")


def experts_permuted(both: Pair) -> Verdict | None:
    """A stack whose matrices stand in another order."""
    if both.y.ndim != 3 or both.x.shape != both.y.shape:
        return None
    flat = both.x.reshape(len(both.x), -1), both.y.reshape(len(both.y), -1)
    order = order_of_rows(*flat)
    if order is None:
        return None
    return experts_verdict(order)


def experts_verdict(order: list[int]) -> Verdict:
    text_order = sorted(range(len(order)), key=str)
    first = next(place for place, expert in enumerate(order) if place != expert)
    text = f"expert {first} holds our expert {order[first]}"
    if order == text_order:
        text += ": they are sorted as text, 1, 10, 11, 2"
        fix = "sort the experts by number"
        return Verdict("experts permuted", "moe-expert-order", text, fix)
    return Verdict("experts permuted", None, text, "put the experts in order")


def shifted_bytes(both: Pair) -> Verdict | None:
    """The same bytes, begun too early or too late."""
    if both.x.shape != both.y.shape or both.y.nbytes < 256:
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        theirs = np.ascontiguousarray(both.found.astype(both.wanted.dtype))
    if not identical(wide(theirs), wide(both.found)):
        return None
    a, b = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (theirs, both.wanted))
    for shift in range(1, min(129, a.size // 2)):
        for by, left, right in ((shift, a, b), (-shift, b, a)):
            if np.array_equal(left[:64], right[shift : shift + 64]) and np.array_equal(
                left[:-shift], right[shift:]
            ):
                way = "after" if by > 0 else "before"
                text = f"its data begin {shift} bytes {way} where they should"
                fix = "add the start of the data section to every offset"
                return Verdict("bytes shifted", "tensor-data-offset", text, fix)
    return None


def tail_of_zeros(both: Pair) -> Verdict | None:
    """Right up to some place, and zero from there on."""
    if both.x.shape != both.y.shape:
        return None
    x, y = both.x.reshape(-1), both.y.reshape(-1)
    count = int(np.flatnonzero(x)[-1]) + 1 if x.any() else 0
    if not 0 < count < x.size or not np.array_equal(x[:count], y[:count]):
        return None
    fault = "quant-first-block-only" if both.packed else None
    text = f"right in its first {count} values of {x.size}, and zero after them"
    return Verdict("tail of zeros", fault, text, "unpack or copy all of it")


def more_rows(both: Pair) -> Verdict | None:
    """A table that was padded, or cut."""
    if both.x.ndim != 2 or both.y.ndim != 2 or both.x.shape[1] != both.y.shape[1]:
        return None
    rows = min(len(both.x), len(both.y))
    if len(both.x) == len(both.y) or not identical(both.x[:rows], both.y[:rows]):
        return None
    more = len(both.x) - len(both.y)
    if more > 0:
        text = f"{more} rows were added behind ours"
        return Verdict("rows added", None, text, "mask their logits", harmless=True)
    return Verdict("rows missing", None, f"our last {-more} rows are missing", "load all rows")


def quantised(both: Pair) -> Verdict | None:
    """So few values in every group that they must have been quantised, and close to ours."""
    if both.packed or both.x.ndim != 2 or both.x.shape != both.y.shape:
        return None
    if not np.isfinite(both.x).all():
        return None
    for group in (32, 64, 128):
        if both.x.shape[1] % group:
            continue
        few = most_values(both.x, group)
        if few <= 16 and 8 * few <= 4 * group and gain_is_one(both):
            text = f"at most {few} values in each {group} neighbours of a row: it is quantised"
            return Verdict("another quantisation", None, text, "explain it against its own model",
                           harmless=True)  # fmt: skip
    return None


def most_values(values: np.ndarray, group: int) -> int:
    parts = np.sort(values[:64].reshape(-1, group), axis=-1)
    return int((np.diff(parts, axis=-1) != 0).sum(axis=-1).max()) + 1


def gain_is_one(both: Pair) -> bool:
    measured = figures(both.x, both.y)
    return measured["correlation"] > 0.95 and abs(measured["gain"] - 1) < 0.1


HYPOTHESES: tuple[Callable[[Pair], Verdict | None], ...] = (
    constant, turned, other_axes, poured, halves_swapped, experts_permuted, rows_permuted,
    shifted_by_one, reinterpreted, cut_off, multiplied, shifted_bytes, tail_of_zeros, more_rows,
    quantised,
)  # fmt: skip
