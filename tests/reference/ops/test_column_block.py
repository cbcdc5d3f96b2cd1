import pytest
from hypothesis import given, settings

from tests.draws import normal, seeds, sizes
from tests.tolerances import assert_same_bits


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, blocks=sizes, width=sizes)
def test_block_b_owns_its_columns(precision, seed, batch, length, blocks, width):
    """By loop: columns b*N .. (b+1)*N - 1."""
    backend, dtype = precision
    x = normal(seed, batch, length, blocks * width, dtype=dtype)
    for block in range(blocks):
        found = backend.column_block(x, block=block, blocks=blocks)
        assert_same_bits(found, x[:, :, block * width : (block + 1) * width])


def test_no_tokens(backend):
    """By hand: nothing has blocks of nothing."""
    assert backend.column_block(normal(0, 2, 0, 6), block=2, blocks=3).shape == (2, 0, 2)


@pytest.mark.parametrize("block, blocks", [(-1, 2), (2, 2), (0, 0), (0, 3), (1, 5)])
def test_a_block_that_is_not_there_is_refused(backend, block, blocks):
    """By law: blocks are equal, and counted from 0."""
    with pytest.raises(ValueError, match=f"block {block} of {blocks} from width 4"):
        backend.column_block(normal(0, 1, 2, 4), block=block, blocks=blocks)
