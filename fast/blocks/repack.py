"""From the block formats that are affine anyway to MLX's affine groups of 32, without rounding."""

import numpy as np

from lockstep.fast.blocks import cut
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

# The bits of each format that has one scale and one offset for 32 weights.
AFFINE = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5}
GROUP = 32
TILE = 1 << 21  # weights that are spread out at a time


def repacked(tensor: BlockTensor) -> QuantizedTensor:
    """Return a tensor of a format in `AFFINE` as MLX packs it: the same codes in another order.

    Scales and offsets come in float32, which holds the product of two packed scales exactly.
    """
    weights, size = BLOCKS[tensor.format]
    bits, columns = AFFINE[tensor.format], tensor.shape[-1]
    blocks = np.ascontiguousarray(tensor.blocks)
    blocks = blocks.reshape(blocks.size // size, size)
    step, parts = TILE // weights, []
    for start in range(0, max(len(blocks), 1), step):
        with np.errstate(over="ignore", invalid="ignore"):  # of steps that are not finite
            groups = cut(blocks[start : start + step], tensor.format, np)
        parts.append((packed(groups.codes, bits), groups.scales, groups.offsets))
    words, scales, offsets = (np.concatenate(part) for part in zip(*parts, strict=True))
    rows = tensor.shape[:-1]
    by_group = (*rows, columns // GROUP)
    return QuantizedTensor(
        words.reshape(*rows, columns * bits // 32),
        scales.reshape(by_group),
        offsets.reshape(by_group),
        bits,
        GROUP,
        "affine",
    )


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes, a multiple of 32 of them, into one little-endian stream, seen as uint32 words."""
    eights = (
        codes.reshape(codes.size // 8, 8).astype(np.uint64) << np.arange(8, dtype=np.uint64) * bits
    )
    octets = np.bitwise_or.reduce(eights, axis=1).astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(octets[:, :bits]).reshape(-1).view("<u4")
