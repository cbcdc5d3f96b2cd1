from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.blocks import FORMATS
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from tests.blocks_by_loop import exact
from tests.ops_backends import DTYPES
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits

WITNESS = Path(__file__).parents[2] / "witnesses" / "gguf" / "blocks.npz"
ALL = slice(None)
FLOAT32 = DTYPES["float32"]
# Where the float16 scales of a block are; MXFP4 has a byte instead.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()},
}
every = pytest.mark.parametrize("name", FORMATS)


def draw(name: str, seed: int, rows: int = 2, blocks: int = 2) -> BlockTensor:
    """Draw any bytes, and scales of usual size and either sign."""
    rng, size = np.random.default_rng(seed), BLOCKS[name][1]
    octets = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for place in HALVES[name]:
        scales = rng.standard_normal((rows, blocks, 1)).astype("<f2")
        octets[..., place : place + 2] = scales.view(np.uint8)
    if name == "MXFP4":
        octets[..., 0] = rng.integers(100, 140, (rows, blocks))
    return BlockTensor(octets.reshape(rows, blocks * size), name)


@cache
def truth(name: str, seed: int) -> np.ndarray:
    """Unpack what is drawn; the loop is slow, and every namespace and dtype has the same truth."""
    weight, (weights, size) = draw(name, seed), BLOCKS[name]
    return exact(weight.blocks.reshape(-1, size), name, weights).reshape(weight.shape)


def test_formats_are_the_same_everywhere():
    """By law."""
    from lockstep.fast.blocks import CUTS

    assert set(FORMATS) == set(BLOCKS) == set(CUTS) == set(HALVES)


@every
def test_reads_what_llama_cpp_writes(backend, name):
    """By witness: blocks of any bytes, and what the gguf package makes of them."""
    with np.load(WITNESS) as found:
        blocks, expected = found[f"{name}.blocks"], found[f"{name}.values"]
    values = backend.dequantize_blocks(BlockTensor(blocks, name), rows=ALL, dtype=FLOAT32)
    if backend.name == "reference":
        assert_same_bits(values, expected)
    else:
        # A device may flush what is subnormal; the sign of a zero may differ.
        normal = np.abs(expected) >= np.finfo(np.float32).tiny
        np.testing.assert_array_equal(values[normal], expected[normal])
        assert np.abs(values[~normal]).max(initial=0) < np.finfo(np.float32).tiny


@every
@pytest.mark.parametrize("seed", range(3))
def test_unpacks_weight_by_weight(precision, name, seed):
    """By loop: with whole numbers and fractions; what is rounded is rounded once to float32."""
    backend, dtype = precision
    weight = draw(name, seed)
    found = backend.dequantize_blocks(weight, rows=ALL, dtype=dtype)
    expected = truth(name, seed)
    if dtype.itemsize < 8:
        expected = nearest(nearest(expected, FLOAT32), dtype)
    assert found.dtype == dtype
    assert_close(found, expected, kind="exact")


@every
@pytest.mark.parametrize(
    "rows", [slice(1, 3), slice(0, 0), slice(3, 99), np.array([2, 0, 2]), np.array([], np.int64)]
)
def test_unpacks_the_chosen_rows_alone(backend, name, rows):
    """By law: choosing before is choosing after; no rows keep their width."""
    weight = draw(name, 0, rows=4)
    whole = backend.dequantize_blocks(weight, rows=ALL, dtype=FLOAT32)
    assert_same_bits(backend.dequantize_blocks(weight, rows=rows, dtype=FLOAT32), whole[rows])


def test_a_stack_of_matrices(backend):
    """By law: the first axis is chosen from, the others stay."""
    weight = draw("Q4_K", 0, rows=6)
    flat = backend.dequantize_blocks(weight, rows=ALL, dtype=FLOAT32)
    stack = BlockTensor(weight.blocks.reshape(2, 3, -1), "Q4_K")
    assert stack.shape == (2, 3, 512)
    found = backend.dequantize_blocks(stack, rows=slice(1, 2), dtype=FLOAT32)
    assert_same_bits(found, flat[3:].reshape(1, 3, 512))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", [name for name in FORMATS if HALVES[name]])
def test_a_step_that_is_not_finite_spoils_its_block_alone(backend, name, bad):
    """By law: the other blocks are as ever, and nothing warns."""
    weight, size = draw(name, 1), BLOCKS[name][1]
    clean = backend.dequantize_blocks(weight, rows=ALL, dtype=FLOAT32)
    octets, place = weight.blocks.copy(), size + HALVES[name][0]
    octets[1, place : place + 2] = np.array([bad], "<f2").view(np.uint8)
    found = backend.dequantize_blocks(BlockTensor(octets, name), rows=ALL, dtype=FLOAT32)
    spoilt = np.zeros(found.shape, bool)
    spoilt[1, BLOCKS[name][0] :] = True
    assert_same_bits(found[~spoilt], clean[~spoilt])
    assert not np.isfinite(found[spoilt]).all()


def test_every_subnormal_step_is_kept(backend):
    """By hand: all 1023 subnormal float16 steps, times code 3."""
    steps = np.arange(1, 1024, dtype="<u2")[:, None].view(np.uint8)
    blocks = np.concatenate([steps, np.full((1023, 16), 0xBB, np.uint8)], axis=1)
    found = backend.dequantize_blocks(BlockTensor(blocks, "Q4_0"), rows=ALL, dtype=FLOAT32)
    exactly = 3 * np.arange(1, 1024) * 2.0**-24
    assert_close(found, np.repeat(exactly[:, None], 32, axis=1), kind="exact", each=True)


def test_every_power_of_mxfp4(backend):
    """By hand: 255 is 2**128 as in llama.cpp; 4 bits of 0b0100 mean 2."""
    powers = np.arange(2, 255, dtype=np.uint8)[:, None]
    blocks = np.concatenate([powers, np.full((253, 16), 0x44, np.uint8)], axis=1)
    found = backend.dequantize_blocks(BlockTensor(blocks, "MXFP4"), rows=ALL, dtype=FLOAT32)
    exactly = 2.0 ** (np.arange(2, 255) - 126)
    finite = exactly < 2.0**128
    np.testing.assert_array_equal(found[finite], np.repeat(exactly[finite, None], 32, axis=1))
    assert np.isinf(found[~finite]).all()


def test_the_smallest_powers_of_mxfp4_are_subnormal():
    """By hand, on the reference: bytes 0 and 1."""
    from lockstep.reference.ops import dequantize_blocks

    blocks = np.array([[0, *[0x12] * 16], [1, *[0x12] * 16]], np.uint8)
    found = dequantize_blocks(BlockTensor(blocks, "MXFP4"), rows=ALL, dtype=FLOAT32)
    assert_close(found[:, 0], np.array([2.0**-127, 2.0**-126]), kind="exact", each=True)
    assert_close(found[:, 16], np.array([2.0**-128, 2.0**-127]), kind="exact", each=True)
