"""Scales of other groups and blocks, and bits in the wrong place: by index and by loop."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.faults import misread, misread_scales
from lockstep.parity.faults.head_rows import pairs_first
from lockstep.parity.faults.misread_scales import floats_moved, in_pairs
from lockstep.parity.faults.packing import affine, q4_0
from lockstep.parity.faults.tensors import dense
from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from tests.parity.faults.planted import world
from tests.parity.faults.test_misread_blocks import codes_of_q6, six_bits
from tests.parity.faults.test_quantisation import WEIGHT, block, change_of, changed

RNG = np.random.default_rng(29)
NEIGHBOUR = "quant-scales-of-neighbour"
HALF = np.float16(0).nbytes


def of_rows(kind: str, rows: int, count: int) -> BlockTensor:
    octets = RNG.integers(0, 256, (rows, count * BLOCKS[kind][1]), np.uint8)
    return BlockTensor(octets, kind)


def octets_of(weight: BlockTensor) -> np.ndarray:
    """Return the bytes as (rows, blocks of a row, bytes of a block)."""
    return weight.blocks.reshape(len(weight.blocks), -1, BLOCKS[weight.format][1])


def float_bytes(kind: str) -> set[int]:
    starts = [part[kind] for part in (misread.STEPS, misread.MINIMA) if kind in part]
    return {start + n for start in starts for n in range(HALF)}


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("kind", misread.STEPS)
def test_floats_of_the_next_block_by_index(kind, step):
    """Blocks lie one behind the other: behind a row's last comes the next row's first."""
    weight = of_rows(kind, 3, 2)
    right, found = octets_of(weight), octets_of(floats_moved(ops, weight, step=step, heads=None))
    for n in range(6):
        own, there = divmod(n, 2), divmod((n + step) % 6, 2)
        for byte in range(BLOCKS[kind][1]):
            source = there if byte in float_bytes(kind) else own
            assert found[(*own, byte)] == right[(*source, byte)]


def test_the_next_block_is_that_of_the_file_where_rows_lie_in_pairs():
    """By law: move the rows to where the file has them, take the next block, and move them back."""
    stored, rows = of_rows("Q4_0", 8, 2), np.argsort(pairs_first(np.arange(8), 2))
    expected = floats_moved(ops, stored, step=1, heads=None)[rows]
    found = floats_moved(ops, stored[rows], step=1, heads=2)
    np.testing.assert_array_equal(found.blocks, expected.blocks)
    assert not np.array_equal(
        found.blocks, floats_moved(ops, stored[rows], step=1, heads=None).blocks
    )


def test_of_these_llama_alone_has_rows_in_pairs():
    names = ("llama_stretched", "qwen2_biased", "qwen3_mixed")
    found = [in_pairs(world(f"gguf/{name}.gguf").graph) for name in names]
    assert found == [True, False, False]


@pytest.mark.parametrize("kind", misread.STEPS)
def test_floats_of_a_rows_first_block_by_index(kind):
    weight = of_rows(kind, 2, 3)
    found = octets_of(misread_scales.first_block_for_all(ops, weight))
    for own in np.ndindex(2, 3, BLOCKS[kind][1]):
        row, column, byte = own
        source = 0 if byte in float_bytes(kind) else column
        assert found[own] == octets_of(weight)[row, source, byte]


@pytest.mark.parametrize(("where", "step"), [("before", -1), ("after", 1)])
@pytest.mark.parametrize("kind", misread.STEPS)
def test_floats_of_the_next_block_of_the_row_by_index(kind, where, step):
    """Behind a row's last block comes its first one again."""
    weight = of_rows(kind, 2, 3)
    change = change_of(NEIGHBOUR, f"of the block {where}, within the row", "gguf/qwen3_mixed.gguf")
    found = octets_of(change(ops, weight))
    for row, column, byte in np.ndindex(2, 3, BLOCKS[kind][1]):
        source = (column + step) % 3 if byte in float_bytes(kind) else column
        assert found[row, column, byte] == octets_of(weight)[row, source, byte]


@pytest.mark.parametrize("kind", misread.STEPS)
def test_steps_without_their_sign_by_value(kind):
    """The minimum keeps its own."""
    weight = of_rows(kind, 2, 2)
    found, start = octets_of(misread_scales.steps_without_sign(ops, weight)), misread.STEPS[kind]
    for own in np.ndindex(2, 2):
        right, new = (octets[own] for octets in (octets_of(weight), found))
        steps = [row[start : start + 2].view("<f2") for row in (right, new)]
        np.testing.assert_array_equal(steps[1], np.abs(steps[0]))
        rest = [byte for byte in range(len(right)) if byte not in (start, start + 1)]
        np.testing.assert_array_equal(new[rest], right[rest])


def test_scales_of_groups_without_their_sign():
    packed = affine(WEIGHT, bits=4, group_size=32)
    packed = replace(
        packed,
        scales=np.where(
            np.arange(packed.scales.size).reshape(packed.scales.shape) % 2,
            -packed.scales,
            packed.scales,
        ),
    )
    found = change_of("quant-scale-sign-lost", "of groups")(ops, packed)
    np.testing.assert_array_equal(found.scales, np.abs(packed.scales.astype(np.float32)))
    np.testing.assert_array_equal(found.biases, packed.biases)


@pytest.mark.parametrize(("part", "alone"), [("", False), (", the scale alone", True)])
def test_scales_of_a_rows_first_group_by_index(part, alone):
    packed = affine(WEIGHT, bits=4, group_size=32)
    found = change_of(NEIGHBOUR, f"of a row's first group{part}")(ops, packed)
    for r, g in np.ndindex(packed.scales.shape):
        assert found.scales[r, g] == packed.scales[r, 0]
        assert found.biases[r, g] == packed.biases[r, g if alone else 0]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (misread_scales.top_bits_of_the_other, lambda s, m: (m & 48 | s & 15, s & 48 | m & 15)),
        (misread_scales.low_bits_of_the_other, lambda s, m: (s & 48 | m & 15, m & 48 | s & 15)),
    ],
)
def test_bits_of_scales_and_minima_exchanged_by_loop(change, parts):
    """The first four of each lie whole in a byte."""
    _, found, octets = changed("Q4_K", change)
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[:4].view("<f2"))
        scales, minima = six_bits(row)
        for i in range(256):
            scale, least = scales[i // 32], minima[i // 32]
            if i >= 128:
                scale, least = parts(scale, least)
            code = int(row[16 + i // 64 * 32 + i % 32]) >> 4 * (i // 32 % 2) & 15
            assert found[n, i] == step * scale * code - low * least


def test_pairs_of_top_bits_in_reverse_by_loop():
    _, found, octets = changed("Q6_K", misread_scales.highest_first)
    for n, row in enumerate(octets):
        step, scales, right = float(row[208:].view("<f2")[0]), row[192:208], codes_of_q6(row)
        for i in range(256):
            half, at = divmod(i, 128)
            top = int(row[128 + 32 * half + at % 32]) >> 2 * (3 - at // 32) & 3
            code = right[i] & 15 | top << 4
            assert found[n, i] == step * int(scales[i // 16].view(np.int8)) * (code - 32)


def test_q6_k_without_its_nought_by_loop():
    tensor = block("Q6_K")
    found = np.asarray(misread.q6_moved(32)(ops, tensor), np.float64).reshape(2, -1)
    for n, row in enumerate(tensor.blocks.reshape(2, -1)):
        step, scales = float(row[208:].view("<f2")[0]), row[192:208].view(np.int8)
        expected = [step * int(scales[i // 16]) * q for i, q in enumerate(codes_of_q6(row))]
        np.testing.assert_allclose(found[n], expected, rtol=1e-6)


def test_q4_0_around_the_middle_of_its_codes_by_formula():
    tensor = q4_0(WEIGHT)
    found = dense(ops, misread.q4_around(7.5)(ops, tensor), np.float64).reshape(-1, 32)
    for row, value in zip(tensor.blocks.reshape(-1, 18), found, strict=True):
        step = float(row[:2].view("<f2")[0])
        codes = [*(row[2:] & 15).tolist(), *(row[2:] >> 4).tolist()]
        np.testing.assert_allclose(value, [step * (q - 7.5) for q in codes], rtol=1e-6)


def of_groups(name, *, id=NEIGHBOUR):
    """Return a packed matrix, and what a variant makes of it, as plain numbers."""
    packed = affine(WEIGHT, bits=4, group_size=32)
    found = change_of(id, name)(ops, packed)
    return packed, found if isinstance(found, np.ndarray) else dense(ops, found, np.float64)


def made_of(packed, scale_of):
    """Return s q + b by loop, `scale_of(row, column)` saying where s and b are."""
    codes = misread.codes_of(packed)
    out = np.empty(codes.shape)
    for row, column in np.ndindex(*codes.shape):
        there = scale_of(row, column)
        out[row, column] = packed.scales[there] * float(codes[row, column]) + packed.biases[there]
    return out


def test_scales_that_are_tiled_by_loop():
    packed, found = of_groups("tiled along the row")
    expected = made_of(packed, lambda row, column: (row, column % packed.scales.shape[1]))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_scales_that_are_read_column_by_column_by_loop():
    packed, found = of_groups("read column by column")
    rows, groups = packed.scales.shape

    def there(row, column):
        place = row * groups + column // 32
        return place % rows, place // rows

    np.testing.assert_allclose(found, made_of(packed, there), rtol=1e-6, atol=1e-6)


def test_scales_and_biases_exchanged_by_formula():
    packed, found = of_groups("exchanged", id="quant-scales-and-biases-mixed")
    parts = (np.repeat(one, 32, axis=1).astype(float) for one in (packed.scales, packed.biases))
    scales, biases = parts
    expected = biases * misread.codes_of(packed) + scales
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_codes_alone_are_the_numbers_of_the_table():
    packed, found = of_groups("codes alone, in the embedding", id="quant-scales-and-biases-mixed")
    np.testing.assert_array_equal(found, misread.codes_of(packed))
