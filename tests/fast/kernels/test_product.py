"""The product in machine code, for every format and every shape of its loops."""

import numpy as np
import pytest

from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.formats import FORMATS
from lockstep.fast.kernels.matmul import COLUMNS, ROWS, TOKENS
from lockstep.fast.kernels.product import product
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.blocks_by_loop import exact
from tests.draws import normal, pack, packed_matrix
from tests.ops_backends import DTYPES
from tests.sampled import sampled
from tests.tolerances import assert_close

# Each number of bits, each group, and for 2 bits both ways to cut codes out.
PACKED = [(2, 32), (2, 64), (3, 64), (4, 32), (4, 64), (4, 128), (5, 32), (6, 128), (8, 64)]
BLOCKED = [name for name in FORMATS if name in BLOCKS]
# A token alone, some that are no four, fours, and more than one block of them.
TOKEN_COUNTS = (1, 3, 4, 6, TOKENS + 5)
# One row, some that are no four, and more than a core takes at a time.
ROW_COUNTS = (1, 6, 2 * ROWS + 3)


@pytest.fixture
def one_core(monkeypatch):
    """So that a format is compiled once."""
    monkeypatch.setattr(kernel, "SMALL", 2**62)


def block_matrix(name: str, rows: int, columns: int) -> tuple[BlockTensor, np.ndarray]:
    """Return random blocks, and their exact values read weight by weight."""
    weights, size = BLOCKS[name]
    blocks = np.random.default_rng(7).integers(0, 256, (rows * columns // weights, size), np.uint8)
    halves = np.random.default_rng(8).uniform(0.5, 2, (len(blocks), 2)).astype("<f2")
    place = 208 if name == "Q6_K" else 0
    count = 2 if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 1
    blocks[:, place : place + 2 * count] = halves[:, :count].copy().view(np.uint8)
    values = exact(blocks, name, weights).astype(np.float64)
    return BlockTensor(blocks.reshape(rows, -1), name), values.reshape(rows, columns)


def assert_product(weight, values, columns, fewest=1):
    """Compare each output with float64: it is off by little of what it is the sum of.

    Measured for all that is tested here, by at most 1.3 times 2**-24 of that. A last digit that is
    lost in one column is more than twice.
    """
    for tokens in TOKEN_COUNTS:
        if tokens >= fewest:
            x = normal(tokens, tokens, columns).astype(np.float64)
            most = 2 * 2**-24 * (np.abs(x) @ np.abs(values).T)
            found = np.asarray(product(x.astype(np.float32), weight))
            assert (np.abs(found - x @ values.T) <= most).all(), tokens


@sampled(4, "5-32-6")
@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize(("bits", "group"), PACKED)
def test_mlx_packed_rows(bits, group, rows, one_core):
    """By loop: the codes are cut out of whole numbers one by one."""
    scales = DTYPES["bfloat16"]  # as most checkpoints have them: other tests compile the same
    weight, values = packed_matrix(rows, rows, 256, bits=bits, group=group, dtype=scales)
    assert_product(weight, values, 256)


@sampled(1, "Q5_0-67")
@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize("name", BLOCKED)
def test_rows_of_blocks(name, rows, one_core):
    """By loop: each weight is read out of its block for itself."""
    weight, values = block_matrix(name, rows, 256)
    assert_product(weight, values, 256)


@pytest.mark.parametrize("columns", [16, 48, 96, COLUMNS + 64])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_floats(dtype, columns, one_core):
    """By law: a narrower float is a float32."""
    weight = normal(0, 7, columns, dtype=DTYPES[dtype])
    fewest = 4 if dtype == "float32" else 1  # less is left to BLAS
    assert_product(weight, weight.astype(np.float64), columns, fewest)


@sampled(1, "Q5_0")
@pytest.mark.parametrize("name", BLOCKED)
def test_rows_longer_than_the_first_cache(name, one_core):
    weight, values = block_matrix(name, 5, 2 * COLUMNS + 256)
    assert_product(weight, values, 2 * COLUMNS + 256)


@sampled(3, "Q5_0")
@pytest.mark.parametrize("name", BLOCKED)
def test_each_weight_of_a_block_is_exact(name, one_core):
    """By law: a one picks a weight out, and no format of GGUF rounds in float32 but at its end."""
    weight, _ = block_matrix(name, 3, 256)
    picked = product(np.eye(256, dtype=np.float32), weight)
    plain = dequantize(weight, rows=slice(None), dtype=np.dtype(np.float32))
    np.testing.assert_array_equal(picked, plain.T)


@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
def test_how_many_cores_work_changes_no_bit(rows, tokens, monkeypatch):
    """By law: each product is one core's alone."""
    weight, _ = packed_matrix(0, rows, 256, bits=4, group=64, dtype=DTYPES["bfloat16"])
    x = normal(1, tokens, 256)
    found = []
    for small in (0, 2**62):
        monkeypatch.setattr(kernel, "SMALL", small)
        found.append(product(x, weight))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_what_is_not_finite_stays_with_its_token(bad, tokens):
    """By hand: all weights are 2, so that an infinity keeps its sign."""
    scales = DTYPES["bfloat16"]
    ones, twos = np.ones((5, 2), scales), np.full((5, 2), 2, scales)
    weight = QuantizedTensor(np.zeros((5, 16), np.uint32), ones, twos, 4, 64, "affine")
    x = np.ones((tokens, 128), np.float32)
    x[0, 3] = bad
    found = np.asarray(product(x, weight))
    np.testing.assert_array_equal(found[0], np.full(5, bad, np.float32))
    np.testing.assert_array_equal(found[1:], 256)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**20])
def test_no_bit_of_a_token_depends_on_another(bad, one_core):
    """By law: what one token holds, and how many hold such, changes its own outputs alone."""
    scales = DTYPES["bfloat16"]
    weight, values = packed_matrix(0, 2 * ROWS + 3, 256, bits=4, group=64, dtype=scales)
    x = normal(1, 16, 256)
    plain, found = product(x, weight), []
    for others in ([0], [0, 3, 4, 9, 15]):
        changed = x.copy()
        changed[others, 0] = bad
        found.append(product(changed, weight))
        same = np.setdiff1d(np.arange(16), others)
        np.testing.assert_array_equal(found[-1][same], plain[same])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    if np.isfinite(bad):
        x[0, 0] = bad
        assert_close(found[0][:1], x[:1].astype(np.float64) @ values.T, kind="sum")


@pytest.mark.parametrize("tokens", [1, 3, 6])
@pytest.mark.parametrize("outliers", [1, 5])
@pytest.mark.parametrize("size", [2.0**20, -3e9])
def test_what_is_small_beside_a_weight_of_zero_is_kept(size, outliers, tokens):
    """By hand: weights are 0 where the last token is large, and else 1."""
    codes = np.ones((5, 128), int)
    codes[:, :outliers] = 0
    ones, zeros = np.ones((5, 2), DTYPES["bfloat16"]), np.zeros((5, 2), DTYPES["bfloat16"])
    weight = QuantizedTensor(pack(codes, 4), ones, zeros, 4, 64, "affine")
    x = np.full((tokens, 128), 0.1, np.float32)
    x[-1, :outliers] = size
    right = np.full((tokens, 5), (128 - outliers) * np.float64(np.float32(0.1)))
    assert_close(product(x, weight), right, kind="sum")


@sampled(6)
@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_1", "MLX"])
def test_a_scale_that_is_not_finite(name, bad, tokens, one_core):
    """By loop, in float64: NaN and infinities where a plain product has them, in that row alone."""
    if name == "MLX":
        weight, _ = packed_matrix(0, 40, 256, bits=4, group=64, dtype=DTYPES["bfloat16"])
        weight.scales[33, 2] = bad
    else:
        weight, _ = block_matrix(name, 40, 256)
        size = BLOCKS[name][1]
        weight.blocks[33, size : size + 2] = np.array([bad], "<f2").view(np.uint8)
    x = np.abs(normal(0, tokens, 256))
    with np.errstate(invalid="ignore"):
        plain = dequantize(weight, rows=slice(None), dtype=np.dtype(np.float32))
        right = x.astype(np.float64) @ plain.T.astype(np.float64)
    found = product(x, weight)
    np.testing.assert_array_equal(np.isfinite(found).all(axis=0), np.arange(40) != 33)
    assert_close(found, right, kind="sum")


@pytest.mark.parametrize("tokens", [1, 6])
def test_what_is_tiny_times_what_is_tiny(tokens):
    """By hand: 128 * 2**-50 * 3 * 2**-80 is 3 * 2**-123; a step of 2**-72 times 2**-80 is 0."""
    tiny = DTYPES["bfloat16"]
    scales, zeros = np.full((5, 2), 2.0**-80).astype(tiny), np.zeros((5, 2), tiny)
    weight = QuantizedTensor(pack(np.full((5, 128), 3), 4), scales, zeros, 4, 64, "affine")
    x = np.full((tokens, 128), 2.0**-50, np.float32)
    np.testing.assert_array_equal(product(x, weight), np.float32(3 * 2.0**-123))


@pytest.mark.parametrize("bad", [np.nan, 2.0**20, 1e38])
def test_no_bit_of_few_tokens_depends_on_another(bad, one_core):
    """By law: neither where one has no digits nor where a row's scale is not finite."""
    weight, _ = packed_matrix(0, ROWS + 3, 256, bits=4, group=64, dtype=DTYPES["bfloat16"])
    weight.scales[5, 1] = np.inf
    x = normal(1, 3, 256)
    x[1, 0] = bad
    with np.errstate(invalid="ignore"):
        alone = np.concatenate([product(x[token : token + 1], weight) for token in range(3)])
        np.testing.assert_array_equal(product(x, weight), alone)
    assert np.isfinite(alone[::2]).sum() == 2 * (ROWS + 2)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_nothing_to_multiply_is_left_to_numpy(shape):
    assert product(np.zeros(shape, np.float32), np.zeros((4, shape[1]), np.float32)) is None


def test_a_form_without_a_kernel_is_left_to_numpy():
    """By hand: a width that sixteen does not divide, floats of eight bytes, few float32."""
    assert product(np.ones((3, 16), np.float32), np.ones((2, 16), np.float32)) is None
    assert product(np.ones((4, 15), np.float32), np.ones((2, 15), np.float32)) is None
    assert product(np.ones((1, 16), np.float32), np.ones((2, 16), np.float64)) is None
    blocks = BlockTensor(np.zeros((1, 84), np.uint8), "Q2_K")
    assert product(np.ones((1, 256), np.float32), blocks) is None


def test_columns_of_another_array_may_be_given():
    """By law: a view is copied into rows of its own first."""
    weight, values = packed_matrix(0, 6, 64, bits=4, group=32, dtype=DTYPES["bfloat16"])
    x = normal(0, 64, 3).T
    assert_close(product(x, weight), x.astype(np.float64) @ values.T, kind="sum")
