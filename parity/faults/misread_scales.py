"""Packed weights whose scales are another group's or block's, or lack bits, or have others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.head_rows import heads_of, pairs_first
from lockstep.parity.faults.misread import MINIMA, STEPS, TOP_BITS, misread, of_gguf, of_mlx
from lockstep.parity.faults.packing import codes_of, recoded
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.llama_family import LlamaConfig
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.precision import dtype_named

ROWS, GROUPS = 0, 1


def of_neighbour(axis: int, step: int, *, biases: bool) -> Rewrite:
    """Give each group the scale, and the bias, of a neighbour in its row, or of one a row away."""
    return scaled(lambda part: np.roll(part, step, axis), biases=biases)


def kept_in(name: str, *, biases: bool = True) -> Rewrite:
    """Round scales, and biases, to half precision; what is computed with them is wide."""
    half = dtype_named(name)
    return scaled(lambda part: part.astype(half).astype(np.float32), biases=biases)


def scaled(change: Callable[[np.ndarray], np.ndarray], *, biases: bool) -> Rewrite:
    def changed(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
        scales, offsets = (part.astype(np.float32) for part in (weight.scales, weight.biases))
        return replace(weight, scales=change(scales), biases=change(offsets) if biases else offsets)

    return misread(changed, of_mlx("affine"))


def tiled(ops: Any, weight: QuantizedTensor) -> np.ndarray:
    """Give column k the scale number k mod groups of its row, and that bias."""
    codes, groups = codes_of(weight), weight.scales.shape[1]
    there = np.arange(codes.shape[1]) % groups
    scales, biases = (part.astype(np.float32)[:, there] for part in (weight.scales, weight.biases))
    return scales * codes + biases


def read_transposed(part: np.ndarray) -> np.ndarray:
    """Take scales column by column, and fill the rows with them."""
    return np.ascontiguousarray(part.T).reshape(part.shape)


def exchanged(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Take biases for scales, and scales for biases."""
    return replace(weight, scales=weight.biases, biases=weight.scales)


def bare_codes(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Take codes for numbers."""
    ones = np.ones_like(weight.scales, np.float32)
    return replace(weight, scales=ones, biases=0 * ones)


without_sign = scaled(np.abs, biases=False)


def top_bit_lost(ops: Any, weight: QuantizedTensor) -> QuantizedTensor:
    """Take all bits of a code but the first."""
    return recoded(weight, codes_of(weight) & ((1 << (weight.bits - 1)) - 1))


def of_first(*, biases: bool) -> Rewrite:
    """Give all groups of a row the scale, and the bias, of its first one."""
    return scaled(lambda part: np.repeat(part[:, :1], part.shape[1], 1), biases=biases)


def floats_of(kind: str) -> list[int]:
    """Return the bytes of a block that its step, and its minimum, take."""
    starts = [STEPS[kind], *([MINIMA[kind]] if kind in MINIMA else [])]
    return [byte for start in starts for byte in (start, start + 1)]


def of_other_block(step: int) -> Rewrite:
    """Decode each block by the floats of one further on, or back, in the file."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        heads = heads_of(call, graph) if in_pairs(graph) else None
        return by_blocks(step, heads and heads[0])(call, graph)

    return rewritten


def in_pairs(graph: Graph) -> bool:
    """Say whether a GGUF file has rows of queries and keys in pairs, as Llama's has.

    Qwen2, of the same config, has not: its queries have a bias, its outputs none.
    """
    config = graph.config
    if not isinstance(config, LlamaConfig):
        return False
    queries, outputs = (f"self_attn.{one}_proj" in config.biased for one in "qo")
    return queries == outputs


@cache
def by_blocks(step: int, heads: int | None) -> Rewrite:
    return misread(partial(floats_moved, step=step, heads=heads), of_gguf(*STEPS))


def floats_moved(ops: Any, weight: BlockTensor, *, step: int, heads: int | None) -> BlockTensor:
    """Move the floats of blocks, where each head's rows lie in pairs if heads are said."""
    rows = np.arange(len(weight.blocks))
    stored = rows if heads is None else pairs_first(rows, heads)
    size, there = BLOCKS[weight.format][1], floats_of(weight.format)
    blocks = weight.blocks[stored].reshape(-1, size)
    blocks[:, there] = np.roll(blocks[:, there], -step, axis=0)
    return replace(weight, blocks=blocks.reshape(weight.blocks.shape)[np.argsort(stored)])


def in_own_row(step: int) -> Rewrite:
    """Decode each block by the floats of one further on, or back, in its row, as in a ring."""

    def moved(floats: np.ndarray) -> np.ndarray:
        return np.roll(floats, -step, axis=1)

    return misread(partial(with_floats, change=moved), of_gguf(*STEPS))


def with_floats(
    ops: Any, weight: BlockTensor, *, change: Callable[[np.ndarray], np.ndarray]
) -> BlockTensor:
    """Change the floats of blocks, (rows, blocks, bytes) of them."""
    size, there = BLOCKS[weight.format][1], floats_of(weight.format)
    blocks = np.ascontiguousarray(weight.blocks).reshape(len(weight.blocks), -1, size).copy()
    blocks[:, :, there] = change(blocks[:, :, there])
    return replace(weight, blocks=blocks.reshape(weight.blocks.shape))


def first_block_for_all(ops: Any, weight: BlockTensor) -> BlockTensor:
    """Decode all blocks of a row by the floats of its first one."""
    return with_floats(
        ops, weight, change=lambda floats: np.repeat(floats[:, :1], floats.shape[1], 1)
    )


def steps_without_sign(ops: Any, weight: BlockTensor) -> BlockTensor:
    """Clear the sign of each block's step, the top bit of its second byte."""
    signs = np.array([255, 127, *[255] * (len(floats_of(weight.format)) - 2)], np.uint8)
    return with_floats(ops, weight, change=lambda floats: floats & signs)


def top_bits_of_the_other(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Give the last four scales the top bits of the minima, and these those of the scales."""
    new, scales, minima = blocks.copy(), blocks[:, 4:8], blocks[:, 8:12]
    new[:, 4:8], new[:, 8:12] = scales & 63 | minima & 192, minima & 63 | scales & 192
    return new


def low_bits_of_the_other(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Give the last four scales the low bits of the minima, and these those of the scales."""
    new = blocks.copy()
    new[:, 12:16] = blocks[:, 12:16] >> 4 | blocks[:, 12:16] << 4
    return new


def highest_first(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Take the four pairs of top bits of a byte from its other end."""
    where = TOP_BITS[kind]
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    pairs = blocks[:, where, None] >> shifts & 3
    new = blocks.copy()
    new[:, where] = np.bitwise_or.reduce(pairs << shifts[::-1], axis=2)
    return new
