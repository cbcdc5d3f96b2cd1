"""Whether a matrix makes outputs of inputs shows in the tokens beyond their directions. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.directions import Inputs, agreeing
from lockstep.parity.explaining.searching.untrained import Sample


def inputs(x, least=0.0) -> Inputs:
    found = Inputs.of(x, least)
    assert found is not None
    return found


@pytest.mark.parametrize(("spare", "named"), [(3, False), (4, True)])
def test_what_any_matrix_makes_shows_none(spare, named):
    """As many rows as directions come from any inputs, and a few more from the right."""
    rng = np.random.default_rng(3)
    x = np.linalg.qr(rng.standard_normal((6 + spare, 6)))[0]
    assert inputs(x).make(x @ rng.standard_normal((6, 8))) == named
    assert not inputs(x).make(rng.standard_normal((6 + spare, 8)))


def test_rows_of_no_relation_come_from_no_inputs_however_many_directions_these_have():
    """All but the root of 4 / 1028 of any rows is a product of so many directions."""
    rng = np.random.default_rng(3)
    x = np.linalg.qr(rng.standard_normal((1028, 1024)))[0]
    found, outputs = inputs(x), rng.standard_normal((1028, 8))
    assert found.left_over(outputs) < 0.1 and not found.make(outputs)
    assert found.make(x @ rng.standard_normal((1024, 8)))


def test_short_directions_that_were_not_asked_leave_their_share():
    """Random numbers make of each direction as much as it is long."""
    rng = np.random.default_rng(3)
    rows = np.linalg.qr(rng.standard_normal((40, 32)))[0]
    x = rows * np.where(np.arange(32) < 16, 1.0, 0.1)
    outputs = x @ rng.standard_normal((32, 200))
    found, every = inputs(x, 0.5), inputs(x)
    assert len(found.lengths) == 16 and len(every.lengths) == 32 and every.short == 0
    assert found.left_over(outputs) == pytest.approx(found.short, rel=0.1)
    assert found.make(outputs) and every.make(outputs)


def test_as_many_tokens_as_directions_show_it_by_the_size_of_their_numbers():
    """Some matrix leads there from any inputs, but that of wrong ones is uneven."""
    rng = np.random.default_rng(34)  # both have no short direction
    right, other = rng.standard_normal((2, 24, 24))
    outputs, own = right @ rng.standard_normal((24, 24)) * 0.02, rng.standard_normal((24, 24))
    for x, size in ((right, 0.02), (other, None)):
        found = inputs(x)
        assert found.make(outputs)
        assert Sample(found.matrix(outputs), found.matrix(x @ own), 24).size == size


@pytest.mark.parametrize(("strays", "left"), [(0, 40), (5, 35), (11, 40)])
def test_a_few_tokens_that_stray_are_left_out(strays, left):
    """A quarter of the tokens may: of more, nothing is known."""
    rng = np.random.default_rng(3)
    x, matrix = rng.standard_normal((40, 20)), rng.standard_normal((20, 8))
    outputs = x @ matrix
    wrong = rng.permutation(40)[:strays]
    outputs[wrong] = 3 * rng.standard_normal((strays, 8))
    kept = agreeing(x, outputs)
    assert len(kept) == left
    assert left == 40 or not {*kept} & {*wrong}


def test_no_tokens_are_left_out_of_what_has_nothing_to_do_with_the_inputs():
    rng = np.random.default_rng(3)
    x, outputs = rng.standard_normal((40, 28)), rng.standard_normal((40, 24))
    kept = agreeing(x, outputs)
    assert len(kept) == 40 and not inputs(x[kept]).make(outputs[kept])
