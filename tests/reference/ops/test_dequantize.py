import numpy as np
import pytest

from lockstep.reference.blocks import FORMATS
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from tests.draws import normal, packed_matrix
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

ALL = slice(None)
FLOAT32 = DTYPES["float32"]


def blocks_of(name: str, rows: int) -> BlockTensor:
    """Return rows of one block each; every byte, and so every scale, is small."""
    octets = np.arange(rows * BLOCKS[name][1], dtype=np.uint8) % 60
    return BlockTensor(octets.reshape(rows, -1), name)


def test_affine_groups(backend):
    """By law: the operation of that form."""
    weight, _ = packed_matrix(0, 3, 64, bits=5, group=32)
    found = backend.dequantize(weight, rows=slice(1, 3), dtype=FLOAT32)
    assert_same_bits(found, backend.dequantize_affine(weight, rows=slice(1, 3), dtype=FLOAT32))


@pytest.mark.parametrize("name", FORMATS)
def test_blocks(backend, name):
    """By law: the operation of that form."""
    weight, rows = blocks_of(name, 3), np.array([2, 0])
    found = backend.dequantize(weight, rows=rows, dtype=FLOAT32)
    assert_same_bits(found, backend.dequantize_blocks(weight, rows=rows, dtype=FLOAT32))


@pytest.mark.parametrize("name", FORMATS)
def test_linear_and_embedding_take_blocks(backend, name):
    """By law: a product with a packed matrix is one with what it unpacks to; so is a look-up."""
    weight = blocks_of(name, 5)
    dense = backend.dequantize(weight, rows=ALL, dtype=FLOAT32)
    x = normal(0, 2, 3, weight.shape[1])
    exact = x.astype(np.float64) @ dense.astype(np.float64).T
    assert_close(backend.linear(x, weight, None), exact, kind="sum", backend=backend)
    tokens = np.array([[4, 0, 4]])
    found = backend.embedding(tokens, weight, dtype=FLOAT32)
    assert_same_bits(found, dense[tokens])
