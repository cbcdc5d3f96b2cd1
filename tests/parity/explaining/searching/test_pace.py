"""When a search is given up that gets no nearer. By hand."""

import pytest

from lockstep.parity.explaining.searching.pace import Pace


@pytest.mark.parametrize(
    ("left", "stalled"),
    [
        ([8.0, 4.0, 2.0, 1.0], [False] * 4),
        ([8.0, 7.9, 4.0, 3.9, 3.9], [False, False, False, False, True]),
        ([8.0, 7.9, 7.9], [False, False, True]),
        ([8.0, 9.0, 7.9], [False, False, True]),
        ([1e300, 1e300, 1e300, 1.0], [False, False, True, False]),
    ],
)
def test_two_steps_in_a_row_that_bring_nothing_nearer_are_the_last(left, stalled):
    pace = Pace()
    assert [pace.stalls(one) for one in left] == stalled


def test_one_measure_that_gets_nearer_is_enough():
    pace = Pace()
    assert not any(pace.stalls(5.0, left) for left in (8.0, 4.0, 2.0, 1.0))
    assert [pace.stalls(5.0, 1.0) for _ in range(2)] == [False, True]


def test_a_step_is_quick_that_leaves_four_fifths_of_what_the_one_before_did():
    """Whatever the best so far was."""
    pace, told = Pace(last=(9.0, 10.0)), []
    for left in ((9.0, 8.0), (9.0, 7.0), (18.0, 7.0), (14.0, 7.0)):
        pace.stalls(*left)
        told.append(pace.quick)
    assert told == [True, False, False, True]
    pace = Pace()
    assert not pace.stalls(1.0) and not pace.quick  # nothing was before
