import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from tests.draws import normal, pack, seeds
from tests.ops_backends import DTYPES
from tests.rounding import nearest
from tests.tolerances import assert_close, assert_same_bits

ALL = slice(None)
FLOAT32 = DTYPES["float32"]
ONE = {"mxfp4": 127, "mxfp8": 127, "nvfp4": 0x38}  # the scale byte that means 1
# Fewer bits than any float: every one of them is written out here.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 += tuple(-level for level in E2M1)
# The eight numbers of a row have one exponent; what a row doubles is the row before.
E4M3_ROWS = (
    [count / 512 for count in (0, 1, 2, 3, 4, 5, 6, 7)],  # subnormal
    [count / 512 for count in (8, 9, 10, 11, 12, 13, 14, 15)],
    [0.03125, 0.03515625, 0.0390625, 0.04296875, 0.046875, 0.05078125, 0.0546875, 0.05859375],
    [0.0625, 0.0703125, 0.078125, 0.0859375, 0.09375, 0.1015625, 0.109375, 0.1171875],
    [0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375],
    [0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875],
    [0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375],
    [1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875],
    [2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75],
    [4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5],
    [8, 9, 10, 11, 12, 13, 14, 15],
    [16, 18, 20, 22, 24, 26, 28, 30],
    [32, 36, 40, 44, 48, 52, 56, 60],
    [64, 72, 80, 88, 96, 104, 112, 120],
    [128, 144, 160, 176, 192, 208, 224, 240],
    [256, 288, 320, 352, 384, 416, 448, np.nan],
)  # fmt: skip
POSITIVE = [value for row in E4M3_ROWS for value in row]
E4M3 = np.array([*POSITIVE, *(-value for value in POSITIVE)])
E8M0 = np.array([*(2.0 ** (byte - 127) for byte in range(255)), np.inf])
ELEMENTS = {"mxfp4": np.array(E2M1), "mxfp8": E4M3, "nvfp4": np.array(E2M1)}
SCALES = {"mxfp4": E8M0, "mxfp8": E8M0, "nvfp4": E4M3}
every = pytest.mark.parametrize("mode", MINIFLOATS)


def tensor(codes, scales, mode: str) -> MinifloatTensor:
    """Pack codes (N, K) with scale bytes (N, K / group)."""
    bits, _ = MINIFLOATS[mode]
    return MinifloatTensor(pack(np.asarray(codes), bits), np.asarray(scales, np.uint8), mode)


def draw(mode: str, seed: int, rows: int = 3, groups: int = 4) -> MinifloatTensor:
    """Draw any codes but NaN, and scales of usual size."""
    bits, group = MINIFLOATS[mode]
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**bits, (rows, groups * group))
    codes[codes & 0x7F == 0x7F] = 3
    scales = rng.integers(ONE[mode] - 20, ONE[mode] + 20, (rows, groups))
    return tensor(codes, scales, mode)


def by_loop(weight: MinifloatTensor) -> np.ndarray:
    """Look each code and its scale up in the tables of this file: exact in float64."""
    bits, group = MINIFLOATS[weight.mode]
    out = np.zeros(weight.shape)
    for row, column in np.ndindex(out.shape):
        word, place = divmod(column * bits, 32)
        code = int(weight.packed[row, word]) >> place & (2**bits - 1)
        scale = SCALES[weight.mode][weight.scales[row, column // group]]
        out[row, column] = ELEMENTS[weight.mode][code] * scale
    return out


@every
def test_every_code(backend, mode):
    """By hand: the tables above, with a scale of 1. The sign of a zero is kept."""
    bits, group = MINIFLOATS[mode]
    codes = np.resize(np.arange(2**bits), (1, max(2**bits, group)))
    ones = np.full((1, codes.shape[1] // group), ONE[mode])
    found = backend.dequantize_minifloat(tensor(codes, ones, mode), rows=ALL, dtype=FLOAT32)
    expected = ELEMENTS[mode][codes].astype(np.float32)
    assert_close(found, expected, kind="exact", each=True)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[found == 0]))


@every
def test_every_scale(backend, mode):
    """By hand: the tables above, times 1."""
    one = {4: 2, 8: 0x38}[MINIFLOATS[mode][0]]
    codes = np.full((256, MINIFLOATS[mode][1]), one)
    weight = tensor(codes, np.arange(256)[:, None], mode)
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    assert_close(found[:, 0], SCALES[mode], kind="exact", each=True)


@every
def test_every_code_by_every_scale_as_in_mlx(backend, mode):
    """By witness: `mx.dequantize` in float32, not a bit differs; what is NaN is NaN."""
    bits, group = MINIFLOATS[mode]
    codes = np.resize(np.arange(2**bits), (256, max(2**bits, group)))
    scales = np.repeat(np.arange(256)[:, None], codes.shape[1] // group, axis=1)
    weight = tensor(codes, scales, mode)
    with mx.stream(mx.cpu):
        parts = mx.array(weight.packed), mx.array(weight.scales)
        sizes = {"group_size": group, "bits": bits, "mode": mode}
        expected = np.array(mx.dequantize(*parts, **sizes, dtype=mx.float32))
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    empty = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), empty)
    assert_same_bits(found[~empty], expected[~empty])


@every
def test_reads_what_mlx_writes(backend, mode):
    """By witness: `mx.quantize` packs, and what comes back is near what went in."""
    bits, group = MINIFLOATS[mode]
    values = normal(bits + group, 3, 256)
    with mx.stream(mx.cpu):
        packed, scales = mx.quantize(mx.array(values), group_size=group, bits=bits, mode=mode)
        weight = MinifloatTensor(np.array(packed), np.array(scales), mode)
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    assert found.shape == weight.shape == (3, 256)
    assert np.corrcoef(found.ravel(), values.ravel())[0, 1] > 0.98


@every
@settings(max_examples=10)
@given(seed=seeds)
def test_unpacks_code_by_code(precision, mode, seed):
    """By loop: the order of codes and groups; one rounding, which float32 needs not."""
    backend, dtype = precision
    weight = draw(mode, seed)
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=dtype)
    assert found.dtype == dtype
    assert_close(found, nearest(by_loop(weight), dtype), kind="exact")


@every
@pytest.mark.parametrize(
    "rows", [slice(1, 3), slice(0, 0), slice(3, 99), np.array([2, 0, 2]), np.array([], np.int64)]
)
def test_unpacks_the_chosen_rows_alone(backend, mode, rows):
    """By law: choosing before is choosing after; no rows keep their width."""
    weight = draw(mode, 0, rows=4)
    whole = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    assert_same_bits(backend.dequantize_minifloat(weight, rows=rows, dtype=FLOAT32), whole[rows])


@settings(max_examples=10)
@given(groups=st.integers(1, 5), rows=st.integers(1, 4))
def test_any_number_of_groups(backend, groups, rows):
    """By loop: nvfp4 has groups of 16, so that a row may end in the middle of 32 columns."""
    weight = draw("nvfp4", groups, rows=rows, groups=groups)
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    assert_close(found, by_loop(weight), kind="exact")


@pytest.mark.parametrize("mode, bad", [("mxfp4", 255), ("mxfp8", 255), ("nvfp4", 0x7F)])
def test_a_scale_that_is_not_finite_spoils_its_group_alone(backend, mode, bad):
    """By law: the other groups are as ever, and nothing warns."""
    weight, group = draw(mode, 1), MINIFLOATS[mode][1]
    clean = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    scales = weight.scales.copy()
    scales[1, 0] = bad
    spoilt = MinifloatTensor(weight.packed, scales, mode)
    found = backend.dequantize_minifloat(spoilt, rows=ALL, dtype=FLOAT32)
    assert not np.isfinite(found[1, :group]).any()
    found[1, :group] = clean[1, :group]
    assert_same_bits(found, clean)


def test_overflow_is_quiet(backend):
    """By hand: 6 * 2**127 has no float32, 448 * 448 no float16."""
    weight = tensor(np.full((1, 32), 7), [[254]], "mxfp4")
    assert np.isposinf(backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)).all()
    weight = tensor(np.full((1, 32), 0x7E), [[127 + 9]], "mxfp8")
    found = backend.dequantize_minifloat(weight, rows=ALL, dtype=DTYPES["float16"])
    assert np.isposinf(found.astype(np.float32)).all()


@every
def test_products_and_look_ups_take_it(backend, mode):
    """By law: a product with a packed matrix is one with what it unpacks to; so is a look-up."""
    weight = draw(mode, 2, rows=5)
    dense = backend.dequantize_minifloat(weight, rows=ALL, dtype=FLOAT32)
    x = normal(0, 2, 3, weight.shape[1])
    exact = x.astype(np.float64) @ dense.astype(np.float64).T
    assert_close(backend.linear(x, weight, None), exact, kind="sum", backend=backend)
    tokens = np.array([[4, 0, 4]])
    assert_same_bits(backend.embedding(tokens, weight, dtype=FLOAT32), dense[tokens])
    assert backend.linear(x[:, :0], weight, None).shape == (2, 0, 5)


@every
def test_experts_take_stacks_of_it(backend, mode):
    """By law: a stack of packed matrices gives what the dense ones give."""
    sizes = {
        "gate": (64, 64),
        "up": (64, 64),
        "down": (128, 32),
    }  # of two experts, one over another
    stacks = [stack(mode, seed, *size) for seed, size in enumerate(sizes.values())]
    dense = [
        np.stack([backend.dequantize(one[expert], rows=ALL, dtype=FLOAT32) for expert in range(2)])
        for one in stacks
    ]
    x = normal(6, 1, 3, 64)
    routing = np.array([[[1, 0], [0.25, 0.75], [0, 1]]], np.float32)
    found = backend.experts(x, routing, *stacks, per_token=2)
    expected = backend.experts(x, routing, *dense, per_token=2)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def stack(mode: str, seed: int, rows: int, columns: int) -> MinifloatTensor:
    """Draw two matrices that have half of the rows each, of weights below 1."""
    bits, group = MINIFLOATS[mode]
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns))
    codes[codes & 0x7F == 0x7F] = 3
    byte = {"mxfp4": 124, "mxfp8": 119, "nvfp4": 0x20}[mode]
    weight = tensor(codes, np.full((rows, columns // group), byte), mode)
    packed, scales = (part.reshape(2, rows // 2, -1) for part in (weight.packed, weight.scales))
    return MinifloatTensor(packed, scales, mode)
