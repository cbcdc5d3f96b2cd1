from hypothesis import given, settings

from tests.draws import normal, seeds, sizes
from tests.tolerances import assert_same_bits


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, heads=sizes, width=sizes)
def test_puts_the_heads_side_by_side(precision, seed, batch, length, heads, width):
    """By loop: head h fills the columns h*D .. (h+1)*D - 1."""
    backend, dtype = precision
    x = normal(seed, batch, heads, length, width, dtype=dtype)
    out = backend.merge_heads(x)
    assert out.shape == (batch, length, heads * width)
    for head in range(heads):
        assert_same_bits(out[:, :, head * width : (head + 1) * width], x[:, head])


@settings(max_examples=20)
@given(seed=seeds, length=sizes, heads=sizes, width=sizes)
def test_undoes_the_split(backend, seed, length, heads, width):
    """By law: split, heads first, merge is where one began."""
    x = normal(seed, 2, length, heads * width)
    split = backend.heads_first(backend.split_heads(x, heads=heads))
    assert_same_bits(backend.merge_heads(split), x)


def test_no_tokens(backend):
    """By hand: no tokens have a width all the same."""
    assert backend.merge_heads(normal(0, 2, 3, 0, 4)).shape == (2, 0, 12)
