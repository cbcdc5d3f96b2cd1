"""Softmaxes in blocks of keys: by loop, and told from what a port dumped."""

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.blockwise import BLOCKS
from lockstep.parity.faults.numbers import NUMBERS
from tests.parity.explaining.ports import explained, port
from tests.parity.faults.hand_made import wrong
from tests.parity.faults.test_so_many_tokens import LENGTH, SCORES, attention

SIZE = 4
RNG = np.random.default_rng(17)
FORMS = ["neither", "values", "exponentials", "added", "averaged"]
CLASS = next(fault for fault in catalogue() if fault.id == "softmax-blocks-mixed")


def one_pass(scores, values, *, of_values, of_sum):
    """Read one query's keys block by block, as a kernel does; tell what is rescaled."""
    largest, sum_of_values, sum_of_powers = -np.inf, np.zeros(values.shape[1]), 0.0
    for start in range(0, len(scores), SIZE):
        block = scores[start : start + SIZE]
        before, largest = largest, max(largest, block.max())
        factor = np.exp(before - largest)
        powers = np.exp(block - largest)
        sum_of_values = (
            sum_of_values * (factor if of_values else 1) + powers @ values[start:][:SIZE]
        )
        sum_of_powers = sum_of_powers * (factor if of_sum else 1) + powers.sum()
    return sum_of_values / sum_of_powers


def own_blocks(scores, values, *, average):
    powers = [np.exp(scores[start:][:SIZE]) for start in range(0, len(scores), SIZE)]
    parts = [one / (one.sum() if average else one.max()) for one in powers]
    total = len(parts) if average else sum(one.sum() for one in parts)
    return np.concatenate(parts) @ values / total


BY_LOOP = {
    "neither": lambda *row: one_pass(*row, of_values=False, of_sum=False),
    "values": lambda *row: one_pass(*row, of_values=False, of_sum=True),
    "exponentials": lambda *row: one_pass(*row, of_values=True, of_sum=False),
    "added": lambda *row: own_blocks(*row, average=False),
    "averaged": lambda *row: own_blocks(*row, average=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_blocks_by_loop(form):
    """Against a kernel that goes through the keys that each query sees."""
    values = RNG.standard_normal((2, LENGTH, 3))
    shares = wrong(attention(), BLOCKS[FORMS.index(form)].becomes(SIZE))
    for head, query in np.ndindex(2, LENGTH):
        seen = SCORES[0, head, query, : query + 1]
        expected = BY_LOOP[form](seen, values[head, : query + 1])
        np.testing.assert_allclose(shares[0, head, query] @ values[head], expected, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_one_block_is_the_right_softmax(form):
    number = BLOCKS[FORMS.index(form)]
    right = wrong(attention(), lambda call, graph: call if call.op == "softmax" else None)
    np.testing.assert_allclose(wrong(attention(), number.becomes(16)), right, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_that_a_window_hides_are_no_part(form):
    """Of a window of three keys, a query sees one block or two; nothing is divided by nought."""
    shares = wrong(attention(window=3), BLOCKS[FORMS.index(form)].becomes(SIZE))
    assert np.isfinite(shares).all()
    assert not shares[..., 10, :8].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_the_blocks_are_found(form, level):
    known = [one for one in catalogue() if one.id in NUMBERS or one.family in ("mask", "attention")]
    number = BLOCKS[FORMS.index(form)]
    name = "models/untied_float32"
    taps = port(name, [number.becomes(8)], level=level, length=20)
    found = explained(name, taps, known, length=20)
    assert not found.unexplained
    assert {(one.id, one.variant) for one in found.faults} == {(CLASS.id, number.form.format(8))}
