import pytest
from hypothesis import given, settings

from tests.draws import normal, seeds, sizes
from tests.tolerances import assert_same_bits


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, heads=sizes, width=sizes)
def test_head_h_owns_its_columns(precision, seed, batch, length, heads, width):
    """By loop: columns h*D .. (h+1)*D - 1."""
    backend, dtype = precision
    x = normal(seed, batch, length, heads * width, dtype=dtype)
    out = backend.split_heads(x, heads=heads)
    assert out.shape == (batch, length, heads, width)
    for head in range(heads):
        assert_same_bits(out[:, :, head], x[:, :, head * width : (head + 1) * width])


def test_no_tokens(backend):
    """By hand: nothing is cut into nothing."""
    assert backend.split_heads(normal(0, 2, 0, 6), heads=3).shape == (2, 0, 3, 2)


@pytest.mark.parametrize("heads", [-1, 0, 3, 5])
def test_the_width_must_be_a_multiple(backend, heads):
    """By law: heads have one width, and there is one at least."""
    with pytest.raises(ValueError, match=f"width 4 is no multiple of heads={heads}"):
        backend.split_heads(normal(0, 1, 2, 4), heads=heads)
