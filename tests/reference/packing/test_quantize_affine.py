import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fast import packing as fast_packing
from lockstep.reference import packing
from lockstep.reference.ops import dequantize_affine
from tests.draws import seeds
from tests.ops_backends import to_numpy
from tests.sampled import sampled

WAYS = (packing.quantize_affine, fast_packing.quantize_affine)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
MLX = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
both = pytest.mark.parametrize("quantize", WAYS, ids=("reference", "fast"))


def spread(seed: int, rows: int, columns: int, *, powers: float) -> np.ndarray:
    """Draw rows whose sixteens have sizes of their own."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(-powers, powers, (rows, columns // 16))).repeat(16, axis=1)
    return rng.standard_normal((rows, columns)) * sizes


def parts(packed) -> list[bytes]:
    return [np.ascontiguousarray(one).tobytes() for one in (packed.packed, packed.scales)] + [
        np.ascontiguousarray(packed.biases).tobytes()
    ]


@sampled(22, "4-32-bfloat16-fast")
@both
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@given(seed=seeds, powers=st.sampled_from([0.0, 2.0, 8.0]))
def test_to_the_bit_what_mlx_makes(quantize, bits, group_size, dtype, seed, powers):
    """By witness: mlx.core.quantize, every width, group and dtype."""
    x = spread(seed, 3, 256, powers=powers).astype(DTYPES[dtype])
    with mx.stream(mx.cpu):
        held = mx.array(x.astype(np.float32)).astype(MLX[dtype])
        words, scales, biases = mx.quantize(held, bits=bits, group_size=group_size)
        expected = [to_numpy(one).tobytes() for one in (words, scales, biases)]
    assert parts(quantize(x, bits=bits, group_size=group_size)) == expected


@both
def test_by_hand(quantize):
    """-1 to 14 in 4 bits: the edge is 14, a step -1, and 0 has the code 14."""
    x = np.tile(np.arange(-1, 15, dtype=np.float32), 2)[None]
    packed = quantize(x, bits=4, group_size=32)
    assert packed.scales.tolist() == [[-1.0]] and packed.biases.tolist() == [[14.0]]
    assert [int(word) for word in packed.packed[0]] == [0x89ABCDEF, 0x01234567] * 2
    assert (dequantize_affine(packed, rows=slice(None), dtype=np.dtype(np.float32)) == x).all()


@both
@given(seed=seeds, bits=st.sampled_from([2, 3, 4, 5, 6, 8]))
def test_no_number_is_off_by_more_than_a_step(quantize, seed, bits):
    """By law: half a step for what lies between the ends, which the stretched step may cut by one.

    Zero has a code, and so has the end that is farther from it.
    """
    x = spread(seed, 4, 128, powers=3.0).astype(np.float32)
    x[:, ::7] = 0
    packed = quantize(x, bits=bits, group_size=32)
    found = dequantize_affine(packed, rows=slice(None), dtype=np.dtype(np.float32))
    steps = np.abs(packed.scales).repeat(32, axis=1)
    assert (np.abs(found - x) <= 1.0001 * steps).all()
    assert (np.abs(found[x == 0]) <= 1e-6 * steps[x == 0] * 2**bits).all()
    groups, sizes = x.reshape(-1, 32), np.abs(found).reshape(-1, 32)
    np.testing.assert_allclose(
        sizes[np.arange(len(groups)), np.abs(groups).argmax(1)], np.abs(groups).max(1), rtol=1e-6
    )


@both
def test_edges(quantize):
    """By hand: zeros, one number alone, nothing at all, and what is not finite."""
    zeros = quantize(np.zeros((1, 32), np.float32), bits=4, group_size=32)
    assert not zeros.packed.any() and zeros.biases.item() == 0
    same = quantize(np.full((1, 32), 3.5, np.float32), bits=4, group_size=32)
    assert same.biases.item() == 3.5 and not same.packed.any()
    assert quantize(np.zeros((0, 64), np.float32), bits=3, group_size=32).packed.shape == (0, 6)
    for odd in (np.nan, np.inf, -np.inf):
        x = np.ones((1, 64), np.float32)
        x[0, 5] = odd
        spoilt = quantize(x, bits=4, group_size=32)
        assert np.isnan(spoilt.scales[0, 0]) and not spoilt.packed[0, :4].any()
        assert np.isfinite(spoilt.scales[0, 1]) and spoilt.biases[0, 1] == 1


@both
def test_a_stack_is_packed_matrix_by_matrix(quantize):
    """By law."""
    x = spread(0, 6, 64, powers=1.0).astype(np.float32).reshape(2, 3, 64)
    whole = quantize(x, bits=5, group_size=32)
    assert whole.shape == (2, 3, 64)
    for index in range(2):
        assert parts(whole[index]) == parts(quantize(x[index], bits=5, group_size=32))
