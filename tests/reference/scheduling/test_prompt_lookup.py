"""What followed the last words before. By hand, and by loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.reference.scheduling.common_prefix import common_prefix
from lockstep.reference.scheduling.prompt_lookup import looked_up

TEXTS = st.lists(st.integers(0, 2), max_size=12)


@pytest.mark.parametrize(
    ("text", "count", "longest", "found"),
    [
        ([1, 2, 3, 9, 1, 2], 2, 2, [3, 9]),
        ([1, 2, 3, 9, 1, 2], 5, 2, [3, 9, 1, 2, 3]),  # on the end it goes on with itself
        ([1, 2, 7, 2, 8, 1, 2], 1, 2, [7]),  # the longer match counts,
        ([1, 2, 7, 2, 8, 1, 2], 1, 1, [8]),  # of equal ones the latest
        ([5, 5, 5], 3, 3, [5, 5, 5]),
        ([1, 2, 3], 3, 3, []),
        ([1], 3, 3, []),
        ([], 3, 3, []),
    ],
)
def test_by_hand(text, count, longest, found):
    assert looked_up(text, count, longest=longest) == found


@given(TEXTS, st.integers(1, 5), st.integers(1, 3))
def test_by_loop(text, count, longest):
    """Every earlier place is tried; the longest match, then the latest one, is copied from."""
    best = (0, 0)
    for end in range(1, len(text)):
        for length in range(1, min(longest, end) + 1):
            if text[end - length : end] == text[-length:]:
                best = max(best, (length, end))
    found = looked_up(text, count, longest=longest)
    whole = list(text)
    for step in range(count if best[0] else 0):
        whole.append(whole[best[1] + step])
    assert found == whole[len(text) :]


@given(TEXTS, TEXTS)
def test_the_common_prefix_by_loop(one, other):
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    assert common_prefix(one, other) == length
