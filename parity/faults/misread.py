"""Packed weights read wrongly: as far as it can be said, in the same packed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.packing import codes_of, packed_codes, recoded
from lockstep.parity.faults.tensors import MISREAD, UNPACKED, Change, dense, reweighted
from lockstep.reference.blocks.bits import halves, planes
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.checkpoint.quantized import QuantizedTensor

# Where codes of 4 bits begin in a block, and how many bytes hold two runs of them.
NIBBLES = {
    **{"Q4_0": (2, 16), "Q4_1": (4, 16), "IQ4_NL": (2, 16), "MXFP4": (1, 16), "Q4_K": (16, 32)},
    **{"Q5_0": (6, 16), "Q5_1": (8, 16), "Q5_K": (48, 32)},  # of five bits, the lower four
}
TOP_BITS = {
    "Q5_0": slice(2, 6),
    "Q5_1": slice(4, 8),
    "Q5_K": slice(16, 48),
    "Q6_K": slice(128, 192),
}
# The byte where the step of a block begins.
STEPS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q4_K", "Q5_K"), 0),
    **{"Q2_K": 80, "Q3_K": 108, "Q6_K": 208},
}
# The byte where d_min, or m, begins.
MINIMA = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 82, "Q4_K": 2, "Q5_K": 2}
LOW_HALVES = {"Q5_0": slice(6, 22), "Q5_1": slice(8, 24), "Q5_K": slice(48, 176)}
ONE = {"mxfp4": 127, "mxfp8": 127, "nvfp4": 0x38}  # the byte of a scale of 1


def of_mlx(*modes: str, bits: tuple[int, ...] = (2, 3, 4, 5, 6, 8)) -> Callable[..., bool]:
    return lambda stored: stored.mode in modes and stored.bits in bits


def of_gguf(*formats: str) -> Callable[[StoredFormat], bool]:
    return lambda stored: stored.dtype in formats


def misread(change: Change, when: Callable[[StoredFormat], bool]) -> Rewrite:
    """Change a packed matrix that stays packed."""
    return reweighted(change, when, turn=MISREAD)


def unpacked(change: Change, when: Callable[[StoredFormat], bool]) -> Rewrite:
    """Make something else of a packed matrix."""
    return reweighted(change, when, turn=UNPACKED)


def reoctet(change: Callable[[np.ndarray, str], np.ndarray], *formats: str) -> Rewrite:
    """Change the bytes of blocks: `change(blocks, format)`, a block a row."""

    def changed(ops: Any, weight: BlockTensor) -> BlockTensor:
        size = BLOCKS[weight.format][1]
        blocks = np.ascontiguousarray(weight.blocks).reshape(-1, size)
        return replace(weight, blocks=change(blocks, weight.format).reshape(weight.blocks.shape))

    return misread(changed, of_gguf(*formats))


def data_then_scales(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Read blocks where a matrix lies as all its codes, then all its scales."""
    octets = np.concatenate([blocks[:, 1:].reshape(-1), blocks[:, 0]])
    return octets.reshape(blocks.shape)


def respelled(order: Callable[[np.ndarray], np.ndarray]) -> Rewrite:
    """Read the codes of MLX's words, 32 at a time, in another order."""

    def changed(ops: Any, weight: Any) -> Any:
        codes = codes_of(weight)
        return recoded(weight, order(codes.reshape(-1, 32)).reshape(codes.shape))

    return misread(changed, of_mlx("affine", "mxfp4", "nvfp4", bits=(4,)))


def neighbours_swapped(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(-1, 2)[:, ::-1].reshape(codes.shape)


def halves_apart(codes: np.ndarray) -> np.ndarray:
    """Give the low half of byte j to place j and its high half to place j + 16."""
    return np.concatenate([codes[:, 0::2], codes[:, 1::2]], axis=1)


def nibbles_of(blocks: np.ndarray, kind: str) -> tuple[slice, int]:
    start, run = NIBBLES[kind]
    size = BLOCKS[kind][0] // 2
    return slice(start, start + size), run


def of_eight(*places: int) -> Callable[[np.ndarray], np.ndarray]:
    """Read the eight codes of a word in another order."""
    return lambda codes: codes.reshape(-1, 8)[:, places].reshape(codes.shape)


def in_sequence(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Give both halves of a byte to neighbours."""
    where, run = nibbles_of(blocks, kind)
    octets = blocks[:, where]
    codes = np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(blocks), -1, 2, run)
    new = blocks.copy()
    new[:, where] = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(octets.shape)
    return new


def by_runs(run: int) -> Callable[[np.ndarray, str], np.ndarray]:
    """Take the low halves of so many bytes for codes in a row, and then their high halves."""

    def changed(blocks: np.ndarray, kind: str) -> np.ndarray:
        where, right = nibbles_of(blocks, kind)
        codes = planes(blocks[:, where], run=run, bits=4).reshape(len(blocks), -1, 2, right)
        new = blocks.copy()
        new[:, where] = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(len(blocks), -1)
        return new

    return changed


def high_first(blocks: np.ndarray, kind: str) -> np.ndarray:
    where, _ = nibbles_of(blocks, kind)
    new = blocks.copy()
    new[:, where] = blocks[:, where] >> 4 | blocks[:, where] << 4
    return new


def complement(blocks: np.ndarray, kind: str) -> np.ndarray:
    new = blocks.copy()
    new[:, 2:] ^= 0x88
    return new


def as_affine(codes: np.ndarray, steps: np.ndarray, rows: int, bits: int) -> QuantizedTensor:
    """Return steps * codes, block by block, as a matrix of MLX's form."""
    packed = packed_codes(codes, bits).reshape(rows, -1)
    steps = steps.reshape(rows, -1)
    return QuantizedTensor(packed, steps, np.zeros_like(steps), bits, codes.shape[1], "affine")


def unsigned_q8(ops: Any, weight: BlockTensor) -> QuantizedTensor:
    blocks = np.ascontiguousarray(weight.blocks).reshape(-1, 34)
    return as_affine(blocks[:, 2:], halves(blocks[:, :2], np.dtype(np.float32)),
                     len(weight.blocks), 8)  # fmt: skip


def unsigned_q4(ops: Any, weight: BlockTensor) -> QuantizedTensor:
    blocks = np.ascontiguousarray(weight.blocks).reshape(-1, 18)
    codes = planes(blocks[:, 2:], run=16, bits=4)
    return as_affine(codes, halves(blocks[:, :2], np.dtype(np.float32)), len(weight.blocks), 4)


def q8_less_128(ops: Any, weight: BlockTensor) -> QuantizedTensor:
    """Take the bytes for 0 to 255, and 128 off."""
    read = unsigned_q8(ops, weight)
    return replace(read, biases=-read.scales * np.float32(128))


def q4_around(nought: float) -> Callable[[Any, BlockTensor], QuantizedTensor]:
    """Take another code than 8 for nought."""

    def moved(ops: Any, weight: BlockTensor) -> QuantizedTensor:
        read = unsigned_q4(ops, weight)
        return replace(read, biases=-read.scales * np.float32(nought))

    return moved


def q6_moved(by: int) -> Callable[[Any, BlockTensor], np.ndarray]:
    """Move the nought of Q6_K, 32, down by some codes: what a code of 33 is worth is one step."""

    def moved(ops: Any, weight: BlockTensor) -> np.ndarray:
        blocks = blocks_of(weight).copy()
        blocks[:, :128], blocks[:, 128:192] = 0x11, 0b10101010
        return dense(ops, weight) + np.float32(by) * dense(ops, of_blocks(weight, blocks))

    return moved


def q6_unsigned_scales(ops: Any, weight: BlockTensor) -> np.ndarray:
    """Take the scales of groups for 0 to 255: those below nought are 256, four times 64, more."""
    blocks = blocks_of(weight).copy()
    blocks[:, 192:208] = blocks[:, 192:208] >> 7 << 6
    return dense(ops, weight) + np.float32(4) * dense(ops, of_blocks(weight, blocks))


def scales_for_minima(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Exchange the scales and the minima of groups, of 6 bits each."""
    new = blocks.copy()
    new[:, 4:8], new[:, 8:12] = blocks[:, 8:12], blocks[:, 4:8]
    new[:, 12:16] = blocks[:, 12:16] >> 4 | blocks[:, 12:16] << 4
    return new


def blocks_of(weight: BlockTensor) -> np.ndarray:
    """Return the bytes of a matrix, a block a row."""
    return np.ascontiguousarray(weight.blocks).reshape(-1, BLOCKS[weight.format][1])


def of_blocks(weight: BlockTensor, blocks: np.ndarray) -> BlockTensor:
    return replace(weight, blocks=blocks.reshape(weight.blocks.shape))


def as_bfloat16(octets: np.ndarray) -> np.ndarray:
    return (octets.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def bfloat16_step(ops: Any, weight: BlockTensor) -> QuantizedTensor | np.ndarray:
    """Take the bits of each block's step, a float16, for a bfloat16; of its minimum too."""
    if weight.format not in ("Q4_0", "Q8_0"):
        return bfloat16_parts(ops, weight)
    bits = {"Q4_0": 4, "Q8_0": 8}[weight.format]
    blocks = blocks_of(weight)
    steps = as_bfloat16(blocks[:, :2])
    codes = planes(blocks[:, 2:], run=16, bits=4) if bits == 4 else blocks[:, 2:] ^ 0x80
    read = as_affine(codes, steps, len(weight.blocks), bits)
    return replace(read, biases=-read.scales * np.float32(1 << (bits - 1)))


def bfloat16_parts(ops: Any, weight: BlockTensor) -> np.ndarray:
    """The same of any form: a weight is a sum of what is in proportion to each float of a block."""
    blocks, kind = blocks_of(weight), weight.format
    places = [STEPS[kind], *([MINIMA[kind]] if kind in MINIMA else [])]
    total = np.zeros(weight.shape, np.float32)
    for place in places:
        alone = blocks.copy()
        for other in places:
            alone[:, other : other + 2] = 0
        alone[:, place : place + 2] = np.array([1], "<f2").view(np.uint8)
        part = dense(ops, of_blocks(weight, alone)).reshape(len(blocks), -1)
        total += (part * as_bfloat16(blocks[:, place : place + 2])).reshape(weight.shape)
    return total


def other_sign(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Add the minima that are to be subtracted, or the other way about."""
    new = blocks.copy()
    new[:, MINIMA[kind] + 1] ^= 0x80
    return new


def without_minima(blocks: np.ndarray, kind: str) -> np.ndarray:
    new = blocks.copy()
    new[:, MINIMA[kind] : MINIMA[kind] + 2] = 0
    return new


def exchanged_steps(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Scale the codes by the step of the minima, and these by that of the codes."""
    new, place = blocks.copy(), MINIMA[kind]
    new[:, place - 2 : place + 2] = np.roll(blocks[:, place - 2 : place + 2], 2, axis=1)
    return new


def short_header(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Take codes from byte 2 on, where the minimum lies."""
    new = blocks.copy()
    new[:, 4:] = blocks[:, 2:18]
    return new


def without_top_bits(blocks: np.ndarray, kind: str) -> np.ndarray:
    new = blocks.copy()
    new[:, TOP_BITS[kind]] = 0
    return new


def one_where_clear(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Add 1 where the top bit is clear, 16 where it is set."""
    low = planes(blocks[:, LOW_HALVES[kind]], run=16, bits=4)
    top = np.unpackbits(blocks[:, TOP_BITS[kind]], axis=1, bitorder="little")
    codes = np.where(top == 0, low + 1, low + 16)
    new = blocks.copy()
    new[:, TOP_BITS[kind]] = np.packbits(codes >> 4, axis=1, bitorder="little")
    new[:, LOW_HALVES[kind]] = (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4
    return new


def top_bits_exchanged(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Give the top bits of the first half of a block to the second half."""
    where = TOP_BITS[kind]
    new = blocks.copy()
    new[:, where] = np.roll(blocks[:, where], 2, axis=1)
    return new


def four_bit_scales(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Take the low halves alone for scales, around 8: (s - 8) where s - 32 is right."""
    low = planes(blocks[:, 96:104], run=8, bits=4)
    scales = low + 24  # what gives low - 8 when 32 is taken off
    new = blocks.copy()
    half = scales & 15
    new[:, 96:104] = half[:, :8] | half[:, 8:] << 4
    tops = (scales >> 4).reshape(len(blocks), 4, 4)
    new[:, 104:108] = np.bitwise_or.reduce(tops << np.arange(0, 8, 2, dtype=np.uint8)[:, None], 1)
    return new


def without_top_of_scales(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Forget the two bits that bytes 0 to 7 hold for the last four scales and minima."""
    new = blocks.copy()
    new[:, 4:12] &= 63
    return new


def lanes_in_sequence(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Take the four codes of a byte for neighbours."""
    where = {"Q2_K": slice(16, 80), "Q3_K": slice(32, 96)}[kind]
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    codes = (blocks[:, where, None] >> shifts & 3).reshape(len(blocks), 2, 4, 32)
    new = blocks.copy()
    new[:, where] = np.bitwise_or.reduce(codes << shifts[:, None], axis=2).reshape(len(blocks), 64)
    return new


def quarter_written(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Leave all but the first 32 codes of each half of a Q6_K block at the code of zero, 32."""
    new = blocks.copy()
    low, top = new[:, :128].reshape(-1, 2, 64), new[:, 128:192].reshape(-1, 2, 32)
    low[:, :, :32] &= 15
    low[:, :, 32:] = 0
    top &= 3
    top |= 0b10101000
    return new


def first_block_only(ops: Any, weight: Any) -> Any:
    """Leave everything behind the first block or group of each row at zero."""
    if isinstance(weight, BlockTensor):
        blocks = weight.blocks.copy()
        blocks[:, BLOCKS[weight.format][1] :] = 0
        return replace(weight, blocks=blocks)
    if isinstance(weight, QuantizedTensor):
        scales, biases = weight.scales.copy(), weight.biases.copy()
        scales[:, 1:], biases[:, 1:] = 0, 0
        return replace(weight, scales=scales, biases=biases)
    codes = codes_of(weight)
    codes[:, weight.group_size :] = 0
    return recoded(weight, codes)


def wide_groups(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Take the group of column k to be k // 2g: the second half of the scales is never read."""
    index = np.arange(weight.scales.shape[-1]) // 2
    return replace(weight, scales=weight.scales[:, index], biases=weight.biases[:, index])


def linear_scales(ops: Any, weight: Any) -> np.ndarray:
    """Multiply by the byte of a scale instead of the power of two that it names."""
    levels = dense(ops, replace(weight, scales=np.full_like(weight.scales, 127)))
    return levels * np.repeat(weight.scales.astype(np.float32), weight.group_size, axis=-1)
