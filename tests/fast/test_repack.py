"""Blocks that MLX can hold as its own packed groups: not one value changes. By law and by loop."""

import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast.backends.mlx import MlxBackend
from lockstep.fast.blocks.repack import AFFINE, repacked
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops import dequantize
from tests.blocks_by_loop import exact
from tests.draws import pack

ALL, FLOAT32 = slice(None), np.dtype(np.float32)


def draw(name: str, seed: int) -> BlockTensor:
    """Draw any bytes whose values are all finite."""
    rng, size = np.random.default_rng(seed), BLOCKS[name][1]
    blocks = rng.integers(0, 256, (200, size), np.uint8)
    values = dequantize(BlockTensor(blocks, name), rows=ALL, dtype=FLOAT32)
    sound = blocks[np.isfinite(values).all(axis=1)]
    return BlockTensor(sound[: len(sound) // 6 * 6].reshape(-1, 6 * size), name)


def test_the_formats_that_the_issue_names():
    assert list(AFFINE) == ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K"]


@pytest.mark.parametrize("name", AFFINE)
def test_every_value_is_the_same(name):
    """By law: unpacked from groups and from blocks, in float32, by two programs."""
    weight = draw(name, 0)
    expected = dequantize(weight, rows=ALL, dtype=FLOAT32)
    packed = repacked(weight)
    assert (packed.shape, packed.group_size, packed.mode) == (weight.shape, 32, "affine")
    np.testing.assert_array_equal(dequantize(packed, rows=ALL, dtype=FLOAT32), expected)
    with mx.stream(mx.cpu):
        parts = map(mx.array, (packed.packed, packed.scales, packed.biases))
        theirs = np.array(mx.dequantize(*parts, group_size=32, bits=packed.bits))
    np.testing.assert_array_equal(theirs, expected)


@pytest.mark.parametrize("name", AFFINE)
def test_scales_and_offsets_are_exact(name):
    """By loop: float64 of them gives the exact weights, so float32 lost nothing of either."""
    weight, (weights, size) = draw(name, 1), BLOCKS[name]
    packed = repacked(BlockTensor(weight.blocks[:2], name))
    found = dequantize(packed, rows=ALL, dtype=np.dtype(np.float64))
    expected = exact(weight.blocks[:2].reshape(-1, size), name, weights)
    np.testing.assert_array_equal(found.reshape(-1), expected.reshape(-1))


def test_codes_are_packed_as_mlx_packs():
    """By loop: rows as one whole number each."""
    weight = BlockTensor(np.arange(3 * 2 * 22, dtype=np.uint8).reshape(3, 44), "Q5_0")
    codes = [
        [
            (block[6 + i % 16] >> 4 * (i // 16) & 15)
            + 16 * (int.from_bytes(block[2:6].tobytes(), "little") >> i & 1)
            for block in row.reshape(2, 22)
            for i in range(32)
        ]
        for row in weight.blocks
    ]
    np.testing.assert_array_equal(repacked(weight).packed, pack(np.array(codes), 5))


def test_a_stack_and_a_tile_border(monkeypatch):
    """By law: leading axes stay, and cutting the work anywhere changes nothing."""
    weight = draw("Q4_K", 2)
    whole = repacked(weight)
    monkeypatch.setattr("lockstep.fast.blocks.repack.TILE", 512)
    count = len(weight.blocks) // 2 * 2
    stack = repacked(
        BlockTensor(weight.blocks[:count].reshape(2, -1, weight.blocks.shape[1]), "Q4_K")
    )
    np.testing.assert_array_equal(stack.packed.reshape(count, -1), whole.packed[:count])
    np.testing.assert_array_equal(stack.scales.reshape(count, -1), whole.scales[:count])


@pytest.mark.parametrize("name", BLOCKS)
def test_the_others_stay_packed_on_the_device(name):
    """By law: whatever is not repacked is held in as many bytes as the file has."""
    held = MlxBackend("float32", "cpu").weight(draw(name, 3))
    assert isinstance(held, QuantizedTensor if name in AFFINE else BlockTensor)
    if isinstance(held, BlockTensor):
        assert held.blocks.nbytes == draw(name, 3).blocks.nbytes
