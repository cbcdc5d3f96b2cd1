"""Packed weights read wrongly: code by code in float64, and on small models."""

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.faults import code_values, misread, quant_scales, quantisation
from lockstep.parity.faults.misread_scales import top_bit_lost
from lockstep.parity.faults.packing import affine, codes_of, minifloat, q4_0, q8_0
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Graph, Value
from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world
from tests.sampled import sampled

FAULTS = (*quantisation.FAULTS, *quant_scales.FAULTS)
NAMES = (
    "models/minifloats_mixed", "models/affine_biased_sliding", "models/affine_8_32",
    "gguf/qwen3_mixed.gguf", "gguf/llama_stretched.gguf", "gguf/qwen3_tied.gguf",
    "models/affine_4_64", "models/untied_float32", "models/sliding_bfloat16",
    "gguf/gpt2_turned.gguf", "llama/llama_dynamic",
)  # fmt: skip
HIDDEN = {
    "quant-scales-in-half": "scales are bfloat16 here, as small as float16's",
    "lm-head-quantised-too-low[4 bits in groups of 128]": "no dense head here is that wide",
}
RNG = np.random.default_rng(17)
WEIGHT = RNG.standard_normal((3, 128)).astype(np.float32)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@sampled(10, "block-step-as-bfloat16[]")
@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def by_code(packed, value: Callable[[float, float, float, int], float]) -> np.ndarray:
    """Return `value(scale, bias, code, column)` for every weight of an affine matrix."""
    codes, out = codes_of(packed), np.zeros(packed.shape)
    for n in range(out.shape[0]):
        for k in range(out.shape[1]):
            group = k // packed.group_size
            scale, bias = float(packed.scales[n, group]), float(packed.biases[n, group])
            out[n, k] = value(scale, bias, float(codes[n, k]), k)
    return out


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("change", "value"),
    [
        (
            code_values.signed_codes,
            lambda top: lambda s, b, q, k: s * (q - 2 * top if q >= top else q) + b,
        ),
        (code_values.centred_codes, lambda top: lambda s, b, q, k: s * (q - top)),
        (code_values.zero_points, lambda top: lambda s, b, q, k: s * (q - b)),
        (top_bit_lost, lambda top: lambda s, b, q, k: s * (q % top) + b),
        (code_values.one_step(1), lambda top: lambda s, b, q, k: s * (q + 1) + b),
        (misread.first_block_only, lambda top: lambda s, b, q, k: s * q + b if k < 32 else 0.0),
    ],
)
def test_affine_by_formula(bits, change, value):
    packed = affine(WEIGHT, bits=bits, group_size=32)
    found = dense(ops, change(ops, packed), np.float64)
    np.testing.assert_allclose(found, by_code(packed, value(1 << (bits - 1))), rtol=2e-6, atol=1e-6)


def test_a_dropped_bias_by_formula():
    packed = affine(WEIGHT, bits=4, group_size=32)
    without = replace(packed, biases=np.zeros_like(packed.biases))
    expected = by_code(packed, lambda s, b, q, k: s * q)
    np.testing.assert_allclose(dense(ops, without, np.float64), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "row", "group"),
    [("of the group before", 0, -1), ("of the group after", 0, 1), ("of the row before", -1, 0),
     ("of the row after", 1, 0)],
)  # fmt: skip
def test_scales_of_a_neighbour_by_index(name, row, group):
    packed = affine(WEIGHT, bits=4, group_size=32)
    rows, groups = packed.scales.shape
    for part, alone in (("", False), (", the scale alone", True)):
        found = change_of("quant-scales-of-neighbour", f"{name}{part}")(ops, packed)
        for r, g in np.ndindex(rows, groups):
            there = (r + row) % rows, (g + group) % groups
            assert found.scales[r, g] == packed.scales[there]
            assert found.biases[r, g] == packed.biases[(r, g) if alone else there]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_scales_in_half_are_rounded_once(half):
    packed = affine(WEIGHT, bits=4, group_size=32)
    narrow = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[half]
    for part, alone in (("", False), (", scales alone", True)):
        found = change_of("quant-scales-in-half", f"{half}{part}")(ops, packed)
        assert np.array_equal(found.scales, packed.scales.astype(narrow).astype(np.float32))
        biases = packed.biases if alone else packed.biases.astype(narrow).astype(np.float32)
        assert np.array_equal(found.biases, biases) and found.scales.dtype == np.float32


def change_of(id, name, model="models/affine_8_32"):
    """Return what a variant does to the first packed matrix of a small model."""
    here = world(model)
    call = next(iter(here.calls(variant(id, name)).values()))
    return call.inputs[1].change


def test_groups_twice_as_wide_by_index():
    packed = affine(WEIGHT, bits=4, group_size=32)
    found, codes = dense(ops, misread.wide_groups(ops, packed), np.float64), codes_of(packed)
    for k in (0, 31, 32, 63, 64, 127):
        scale, bias = packed.scales[:, k // 64], packed.biases[:, k // 64]
        np.testing.assert_allclose(found[:, k], scale * codes[:, k].astype(float) + bias, rtol=1e-6)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (misread.neighbours_swapped, [1, 0, 3, 2, 5, 4, 7, 6]),
        (misread.of_eight(0, 2, 4, 6, 1, 3, 5, 7), [0, 2, 4, 6, 1, 3, 5, 7]),
    ],
)
def test_codes_of_a_word_by_index(order, expected):
    assert order(np.arange(8)[None])[0].tolist() == expected


def test_the_two_orders_of_a_word_undo_each_other():
    there, back = misread.of_eight(0, 2, 4, 6, 1, 3, 5, 7), misread.of_eight(0, 4, 1, 5, 2, 6, 3, 7)
    assert back(there(np.arange(32)[None])).tolist() == [[*range(32)]]


def test_halves_apart_by_index():
    found = misread.halves_apart(np.arange(32)[None])[0].tolist()
    assert found == [*range(0, 32, 2), *range(1, 32, 2)]


def block(kind: str) -> BlockTensor:
    """Return two random blocks whose steps are finite."""
    octets = RNG.integers(0, 256, (1, 2 * BLOCKS[kind][1]), np.uint8)
    steps = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for number in range(2):
        for start in steps.get(kind, (0, 2) if kind.endswith("_1") else (0,)):
            at = number * BLOCKS[kind][1] + start
            octets[0, at : at + 2] = np.array([0.5 + number], "<f2").view(np.uint8)
    return BlockTensor(octets, kind)


def changed(kind: str, change: Callable[[np.ndarray, str], np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the weights of the blocks, right and wrong, and their bytes, a block a row."""
    tensor = block(kind)
    octets = tensor.blocks.reshape(2, -1)
    other = replace(tensor, blocks=change(octets, kind).reshape(1, -1))
    weights = [dense(ops, one, np.float64).reshape(2, -1) for one in (tensor, other)]
    return *weights, octets


def test_q4_0_in_sequence_by_loop():
    _, found, octets = changed("Q4_0", misread.in_sequence)
    for n, row in enumerate(octets):
        step = float(row[:2].view("<f2")[0])
        expected = [
            step * (half - 8.0) for byte in row[2:].tolist() for half in (byte & 15, byte >> 4)
        ]
        assert found[n].tolist() == expected


def test_q4_k_in_sequence_is_a_permutation_of_codes():
    """By law: twice the reordering is not the identity, but each block keeps its codes."""
    tensor = block("Q4_K")
    octets = tensor.blocks.reshape(2, -1)
    found = misread.in_sequence(octets, "Q4_K")
    assert not np.array_equal(found, octets) and np.array_equal(found[:, :16], octets[:, :16])
    for before, after in zip(octets[:, 16:], found[:, 16:], strict=True):
        codes = [sorted([*(some & 15).tolist(), *(some >> 4).tolist()]) for some in (before, after)]
        assert codes[0] == codes[1]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "IQ4_NL", "Q4_K"])
def test_the_high_half_first_by_loop(kind):
    right, found, _ = changed(kind, misread.high_first)
    run = misread.NIBBLES[kind][1]
    halves = right.reshape(2, -1, 2, run)[:, :, ::-1].reshape(2, -1)
    if kind == "Q4_K":  # its groups of 32 have scales of their own
        assert not np.array_equal(found, right)
    else:
        np.testing.assert_array_equal(found, halves)


def test_q4_0_as_twos_complement_by_loop():
    _, found, octets = changed("Q4_0", misread.complement)
    for n, row in enumerate(octets):
        step, codes = float(row[:2].view("<f2")[0]), row[2:].tolist()
        nibbles = [byte & 15 for byte in codes] + [byte >> 4 for byte in codes]
        assert found[n].tolist() == [step * (q - 16.0 if q >= 8 else q) for q in nibbles]


@pytest.mark.parametrize(
    ("pack", "change", "signed"),
    [(q8_0, misread.unsigned_q8, 256.0), (q4_0, misread.unsigned_q4, 8.0)],
)
def test_unsigned_codes_by_formula(pack, change, signed):
    """By law: an unsigned Q8_0 is 256 steps too high where it is negative, Q4_0 8 everywhere."""
    tensor = pack(WEIGHT)
    right, found = dense(ops, tensor, np.float64), dense(ops, change(ops, tensor), np.float64)
    blocks = tensor.blocks.reshape(-1, BLOCKS[tensor.format][1])
    steps = blocks[:, :2].copy().view("<f2").astype(float)
    codes = np.round(right.reshape(-1, 32) / steps)
    high = np.where(codes < 0, signed, 0) if pack is q8_0 else signed
    np.testing.assert_allclose(found.reshape(-1, 32), (codes + high) * steps, rtol=1e-6)


def test_a_short_header_by_loop():
    _, found, octets = changed("Q4_1", misread.short_header)
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[:4].view("<f2"))
        codes = row[2:18].tolist()
        nibbles = [byte & 15 for byte in codes] + [byte >> 4 for byte in codes]
        assert found[n].tolist() == [step * q + low for q in nibbles]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (misread.without_top_bits, lambda low, tops, i: low),
        (misread.one_where_clear, lambda low, tops, i: low + (16 if tops[i] else 1)),
        (misread.top_bits_exchanged, lambda low, tops, i: low + 16 * tops[(i + 16) % 32]),
    ],
)
def test_fifth_bits_by_loop(change, code):
    _, found, octets = changed("Q5_0", change)
    for n, row in enumerate(octets):
        step, tops = (
            float(row[:2].view("<f2")[0]),
            [int(row[2 + i // 8]) >> i % 8 & 1 for i in range(32)],
        )
        for i in range(32):
            low = int(row[6 + i % 16]) >> 4 * (i // 16) & 15
            assert found[n, i] == step * (code(low, tops, i) - 16)


def test_scales_of_four_bits_by_loop():
    right, found, octets = changed("Q3_K", misread.four_bit_scales)
    for n, row in enumerate(octets):
        for group in range(16):
            low = int(row[96 + group % 8]) >> 4 * (group // 8) & 15
            top = int(row[104 + group % 4]) >> 2 * (group // 4) & 3
            for i in range(16 * group, 16 * group + 16):
                assert found[n, i] * ((low | top << 4) - 32) == right[n, i] * (low - 8)


def test_scales_without_their_top_bits_by_loop():
    _, found, octets = changed("Q4_K", misread.without_top_of_scales)
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[:4].view("<f2"))
        packed = [int(one) for one in row[4:16]]
        scales = [one & 63 for one in packed[:4]] + [one & 15 for one in packed[8:]]
        minima = [one & 63 for one in packed[4:8]] + [one >> 4 for one in packed[8:]]
        for i in range(256):
            code = int(row[16 + i // 64 * 32 + i % 32]) >> 4 * (i // 32 % 2) & 15
            assert found[n, i] == step * scales[i // 32] * code - low * minima[i // 32]


def test_lanes_in_sequence_by_loop():
    _, found, octets = changed("Q2_K", misread.lanes_in_sequence)
    for n, row in enumerate(octets):
        step, low = (float(one) for one in row[80:84].view("<f2"))
        for i in range(256):
            code, packed = int(row[16 + i // 4]) >> 2 * (i % 4) & 3, int(row[i // 16])
            assert found[n, i] == step * (packed & 15) * code - low * (packed >> 4)


def test_a_quarter_is_written():
    right, found, _ = changed("Q6_K", misread.quarter_written)
    written = np.arange(256) % 128 < 32
    np.testing.assert_array_equal(found, np.where(written, right, 0))


def test_the_first_block_alone():
    tensor = block("Q8_0")
    found = dense(ops, misread.first_block_only(ops, tensor))
    right = dense(ops, tensor)
    np.testing.assert_array_equal(found[:, :32], right[:, :32])
    assert not found[:, 32:].any() and right[:, 32:].any()


def test_codes_before_scales_by_index():
    octets = np.arange(34, dtype=np.uint8).reshape(2, 17)
    found = misread.data_then_scales(octets, "MXFP4")
    assert found.reshape(-1).tolist() == [*range(1, 17), *range(18, 34), 0, 17]


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_exponents_as_numbers_by_formula(mode):
    packed = minifloat(WEIGHT, mode=mode, to_even=True)
    found, right = misread.linear_scales(ops, packed), dense(ops, packed, np.float64)
    steps = packed.scales.astype(float)
    factor = np.repeat(steps / 2.0 ** (steps - 127), 32, axis=-1)
    np.testing.assert_allclose(found, right * factor, rtol=1e-6)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_a_scale_of_one_by_formula(mode):
    packed = minifloat(WEIGHT, mode=mode, to_even=True)
    ones = replace(packed, scales=np.full_like(packed.scales, misread.ONE[mode]))
    right = dense(ops, packed, np.float64)
    steps = np.repeat(2.0 ** (packed.scales.astype(float) - 127), 32, axis=-1)
    np.testing.assert_allclose(dense(ops, ones, np.float64), right / steps)


def tail(width: int) -> Graph:
    x = RNG.standard_normal((1, 2, width))
    rows = RNG.standard_normal((3, width))
    return graph_of(call(0, "scale", x, by=1.0), call(1, "linear", Value(0), rows, None))


def test_a_tail_is_left_out_by_loop():
    graph = tail(40)
    x, rows = (graph.calls[n].inputs[n].value for n in (0, 1))
    found = wrong(graph, variant("qmm-tail-tile", "tiles of 32"))
    np.testing.assert_allclose(found, x[..., :32] @ rows[:, :32].T)
    assert variant("qmm-tail-tile", "tiles of 32")(tail(64).calls[1], tail(64)) is None
    assert variant("qmm-tail-tile", "tiles of 64")(graph.calls[1], graph) is None


@pytest.mark.parametrize("kind", misread.MINIMA)
def test_minima_by_law(kind):
    """The middle of right and wrong sign is no minimum, and all minima are where that says."""
    tensor = block(kind)
    without = misread.without_minima(tensor.blocks.reshape(2, -1), kind).reshape(1, -1)
    octets = tensor.blocks.reshape(2, -1)
    other = misread.other_sign(octets, kind).reshape(1, -1)
    right, flipped, none = (
        dense(ops, replace(tensor, blocks=one), np.float64)
        for one in (tensor.blocks, other, without)
    )
    np.testing.assert_allclose((right + flipped) / 2, none, rtol=1e-6)
    assert not np.array_equal(right, none)


@pytest.mark.parametrize("kind", misread.MINIMA)
def test_exchanged_steps_by_law(kind):
    """Twice is nothing; of equal steps once is nothing; of others it is something."""
    octets = block(kind).blocks.reshape(2, -1).copy()
    twice = misread.exchanged_steps(misread.exchanged_steps(octets, kind), kind)
    np.testing.assert_array_equal(twice, octets)
    np.testing.assert_array_equal(misread.exchanged_steps(octets, kind), octets)
    place = misread.MINIMA[kind]
    octets[:, place : place + 2] = np.array([0.25], "<f2").view(np.uint8)
    found = misread.exchanged_steps(octets, kind)
    np.testing.assert_array_equal(found[:, place - 2 : place], octets[:, place : place + 2])


@pytest.mark.parametrize("pack", [q4_0, q8_0])
def test_steps_taken_for_bfloat16_by_formula(pack):
    """By law: each block by the ratio of what its two bytes are in either type."""
    tensor = pack(WEIGHT)
    right = dense(ops, tensor, np.float64).reshape(-1, 32)
    found = dense(ops, misread.bfloat16_step(ops, tensor), np.float64).reshape(-1, 32)
    octets = tensor.blocks.reshape(-1, BLOCKS[tensor.format][1])[:, :2].copy().view("<u2")
    as_bfloat16 = (octets.astype(np.uint32) << 16).view(np.float32).astype(float)
    expected = right * as_bfloat16 / octets.view("<f2").astype(float)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


def test_q5_0_high_half_first_by_loop():
    """The fifth bits stay where they are: bit n of four bytes is that of weight n."""
    _, found, octets = changed("Q5_0", misread.high_first)
    for n, row in enumerate(octets):
        step, tops = float(row[:2].view("<f2")[0]), int(row[2:6].copy().view("<u4")[0])
        for place in range(32):
            byte = int(row[6 + place % 16])
            low = byte >> 4 if place < 16 else byte & 15
            assert found[n, place] == step * (low + 16 * (tops >> place & 1) - 16)


@pytest.mark.parametrize(
    "packed",
    [
        *(affine(WEIGHT, bits=bits, group_size=32) for bits in (2, 4, 8)),
        *(minifloat(WEIGHT, mode=mode, to_even=True) for mode in ("mxfp4", "mxfp8")),
    ],
)
def test_codes_of_a_word_from_its_other_end_by_index(packed):
    change = change_of("awq-nibble-order", "the last place first")
    codes, found = (codes_of(one) for one in (packed, change(ops, packed)))
    for column in range(codes.shape[1]):
        word, place = divmod(column, size := 32 // packed.bits)
        assert np.array_equal(found[:, column], codes[:, word * size + size - 1 - place])
