from itertools import product

from hypothesis import given, settings

from tests.draws import normal, seeds, sizes
from tests.tolerances import assert_same_bits


@settings(max_examples=20)
@given(seed=seeds, batch=sizes, length=sizes, heads=sizes, width=sizes)
def test_moves_every_vector_to_its_place(precision, seed, batch, length, heads, width):
    """By loop: token l of head h."""
    backend, dtype = precision
    x = normal(seed, batch, length, heads, width, dtype=dtype)
    out = backend.heads_first(x)
    assert out.shape == (batch, heads, length, width)
    for b, h, l in product(range(batch), range(heads), range(length)):  # noqa: E741
        assert_same_bits(out[b, h, l], x[b, l, h])


def test_no_tokens(backend):
    """By hand: an axis of no tokens moves as any other."""
    assert backend.heads_first(normal(0, 2, 0, 3, 4)).shape == (2, 3, 0, 4)
