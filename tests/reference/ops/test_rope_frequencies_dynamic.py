import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close


def stretched(backend, lengths, *, theta=100.0, dims=8, factor=2.0, original=16):
    return backend.rope_frequencies_dynamic(
        np.array(lengths),
        theta=theta,
        dims=dims,
        factor=factor,
        original_max_position_embeddings=original,
    )


def by_loop(length: int, theta: float, dims: int, factor: float, original: int) -> list[float]:
    """Follow the page's formula in Python's floats."""
    growth = factor * max(length, original) / original - (factor - 1)
    base = theta * math.pow(growth, dims / (dims - 2))
    return [math.pow(base, -2 * j / dims) for j in range(dims // 2)]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=4),
    theta=st.floats(2, 1e9),
    pairs=st.integers(2, 64),
    factor=st.floats(1, 16),
    original=st.integers(1, 600),
)
def test_follows_its_formula(backend, lengths, theta, pairs, factor, original):
    """By loop: each row by its own length."""
    options = {"theta": theta, "dims": 2 * pairs, "factor": factor, "original": original}
    found = stretched(backend, lengths, **options)
    exact = [by_loop(length, **options) for length in lengths]
    assert_close(found, exact, kind="rotation", each=True)


def test_up_to_the_original_length_nothing_changes(backend):
    """By law: 0, 1 and 16 tokens of 16."""
    plain = backend.rope_frequencies(theta=100.0, dims=8)
    for row in stretched(backend, [0, 1, 16]):
        assert_close(row, plain, kind="rotation")


def test_the_slowest_pair_is_divided_by_the_growth(backend):
    """By hand: 48 of 16 tokens, factor 2: growth 2 * 3 - 1 = 5; the first pair is left alone."""
    found, plain = stretched(backend, [48])[0], stretched(backend, [16])[0]
    assert found[0] == 1
    assert_close(found[-1] * 5, plain[-1], kind="rotation")
    assert 1 < plain[1] / found[1] < plain[2] / found[2] < 5


def test_no_rows(backend):
    """By hand: nothing in, nothing out."""
    assert stretched(backend, np.zeros(0, int)).shape == (0, 4)


@pytest.mark.parametrize(
    "wrong", [{"dims": 2}, {"dims": 7}, {"factor": 0.5}, {"theta": 0.0}, {"factor": math.nan}]
)
def test_what_has_no_answer(backend, wrong):
    """By law: of one pair the exponent is infinite."""
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        stretched(backend, [3], **wrong)
