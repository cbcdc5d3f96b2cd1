"""Wrong ways of unpacking a packed matrix, each as the values that it gives."""

from collections.abc import Iterator

import numpy as np

from lockstep.parity.before.figures import figures, near, wide
from lockstep.parity.before.pairs import Pair, Verdict
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor, Packed
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.dequantize_affine import unpack_codes

Way = tuple[str | None, str, np.ndarray]
ANOTHER = "another quantisation"
ALIKE, FEW = 0.98, 0.01
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
SIGNED = "the codes are taken for signed ones"


def misread(packed: Packed, both: Pair) -> Verdict | None:
    """Return how theirs was unpacked, if one of the wrong ways gives their values."""
    shape = both.y.shape
    for fault, text, values in ways(packed):
        values = values.reshape(shape)
        if both.x.shape == shape and near(both.x, values, both.dtype) and not_right(both, values):
            return Verdict("unpacked wrongly", fault, text, "unpack it as its format says")
    return other_width(packed, both)


def not_right(both: Pair, values: np.ndarray) -> bool:
    """A wrong way that gives the right values too (all scales 0, say) shows nothing."""
    return not near(values, both.y, both.dtype)


def other_width(packed: Packed, both: Pair) -> Verdict | None:
    """Codes cut at another width than this module's: its rows then have other lengths."""
    if not isinstance(packed, QuantizedTensor) or both.x.ndim != both.y.ndim:
        return None
    columns, theirs = both.y.shape[-1], both.x.shape[-1]
    if both.x.shape[:-1] != both.y.shape[:-1] or theirs == columns or not theirs:
        return None
    bits, rest = divmod(packed.bits * columns, theirs)
    if rest or not 1 <= bits <= 8:
        return None
    text = f"its rows have {theirs} values: codes of {packed.bits} bits were cut at {bits}"
    fix = "take bits and group size of each module, not one of all"
    return Verdict("unpacked wrongly", "quant-bits-global", text, fix)


def ways(packed: Packed) -> Iterator[Way]:
    if isinstance(packed, QuantizedTensor):
        yield from affine_ways(packed)
    elif isinstance(packed, BlockTensor) and packed.format in ("Q4_0", "Q8_0"):
        yield from block_ways(packed)


def affine_ways(packed: QuantizedTensor) -> Iterator[Way]:
    """scale * code + bias, with one of the three taken wrongly."""
    columns = packed.shape[-1]
    words = np.ascontiguousarray(packed.packed).reshape(-1, packed.packed.shape[-1])
    codes = unpack_codes(words, packed.bits).astype(np.float32)
    scales, biases = (
        np.repeat(wide(part).reshape(len(words), -1), packed.group_size, axis=-1)
        for part in (packed.scales, packed.biases)
    )
    yield "affine-bias-dropped", "the offset of the groups is missing", scales * codes
    zero = scales * (codes - biases)
    yield "affine-zero-point-style", "the offset was taken for a zero point", zero
    half = 1 << (packed.bits - 1)
    signed = np.where(codes >= half, codes - 2 * half, codes)
    fault = "q4-signedness" if packed.bits == 4 else None
    yield fault, SIGNED, scales * signed + biases
    yield fault, f"{SIGNED}, without offset", scales * signed
    yield fault, f"{half} was taken from the codes instead of the offset", scales * (codes - half)
    if packed.bits == 4:
        for name, order in orders(columns):
            text = f"the codes of a byte are {name}"
            id_ = "awq-nibble-order" if name.startswith("in the order") else "q4-nibble-order"
            moved = codes[:, order]
            yield id_, text, scales * moved + biases


def orders(columns: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield wrong places of 4-bit codes in a row: swapped, parted as ggml has them, AWQ's."""
    places = np.arange(columns)
    yield "swapped", places.reshape(-1, 2)[:, ::-1].reshape(-1)
    if columns % 32 == 0:
        parted = places.reshape(-1, 16, 2).swapaxes(1, 2).reshape(-1)
        yield "laid 16 apart, as GGML's are", parted
    if columns % 8 == 0:
        awq = places.reshape(-1, 8)[:, AWQ].reshape(-1)
        yield f"in the order {AWQ}, as AWQ's are", awq


def block_ways(packed: BlockTensor) -> Iterator[Way]:
    """Q4_0 is step * (code - 8), the low codes of 16 bytes before the high ones; Q8_0 is signed."""
    size = BLOCKS[packed.format][1]
    blocks = np.ascontiguousarray(packed.blocks).reshape(-1, size)
    steps = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    data = blocks[:, 2:]
    if packed.format == "Q8_0":
        yield "q8-unsigned", "the codes are taken for unsigned ones", steps * data
        return
    low, high = (data & 15).astype(np.float32), (data >> 4).astype(np.float32)
    codes = np.concatenate([low, high], axis=1)
    paired = np.stack([low, high], axis=-1).reshape(codes.shape)
    swapped = np.concatenate([high, low], axis=1)
    yield "q4-nibble-order", "the two codes of a byte stand side by side", steps * (paired - 8)
    yield "q4-nibble-order", "the high codes come before the low ones", steps * (swapped - 8)
    signed = np.where(codes >= 8, codes - 16, codes)
    yield "q4-signedness", SIGNED, steps * signed
    yield "q4-signedness", "8 was not taken from the codes", steps * codes


def requantised(theirs: Packed, both: Pair) -> Verdict | None:
    """Say whether theirs are ours, rounded to the nearest of their steps."""
    if not isinstance(theirs, QuantizedTensor) or not within_steps(theirs, both):
        return None
    kind = f"{theirs.bits} bits in groups of {theirs.group_size}"
    return another(f"it is ours, packed with {kind}: this port runs another quantisation")


def unquantised(packed: Packed, both: Pair) -> Verdict | None:
    """Say whether theirs are what ours were rounded from, or another rounding of that."""
    if both.x.shape != both.y.shape:
        return None
    if isinstance(packed, QuantizedTensor):
        close = within_steps(packed, both)
    else:
        measured = figures(both.x, both.y)
        close = measured["correlation"] > ALIKE and abs(measured["gain"] - 1) < 1 - ALIKE
    text = "ours is packed, and theirs is what it may have been packed from, or packed otherwise"
    return another(text) if close else None


def within_steps(packed: QuantizedTensor, both: Pair) -> bool:
    """Say whether the two sides differ by a step of a packed matrix at most, nearly everywhere."""
    if both.x.shape != both.y.shape:
        return False
    steps = np.repeat(np.abs(wide(packed.scales)), packed.group_size, axis=-1)
    far = np.abs(both.x - both.y) > 1.05 * steps.reshape(both.x.shape)
    return bool(far.mean() <= FEW)


def another(text: str) -> Verdict:
    fix = "explain it against the model that it was made from"
    return Verdict(ANOTHER, None, text, fix, harmless=True)
