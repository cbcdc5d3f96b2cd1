"""Which tokens `--positions` names. By hand."""

import pytest

from lockstep.parity.excerpts.places import check_places, places_in
from lockstep.reference.checkpoint.errors import InputError


@pytest.mark.parametrize(
    "text, places",
    [
        ("last:2", [[8, 9], [1, 2], [0]]),
        ("first:2", [[0, 1], [0, 1], [0]]),
        ("0", [[0], [0], [0]]),
        ("first:1,last:2", [[0, 8, 9], [0, 1, 2], [0]]),
        ("last:99", [[*range(10)], [0, 1, 2], [0]]),
    ],
)
def test_places_count_in_each_row(text, places):
    assert places_in(text, [10, 3, 1]) == places


@pytest.mark.parametrize("text, places", [("2:5", [2, 3, 4]), ("7,1:3,2", [1, 2, 7])])
def test_places_rise_and_none_comes_twice(text, places):
    assert places_in(text, [8]) == [places]


@pytest.mark.parametrize("text", ["", "last", "last:", "-1", "1:", "last:0", "first:0", "5:5",
                                  "5:2", "1,,2", "1-3", "٣", "last:8 "])  # fmt: skip
def test_what_names_no_tokens_is_refused(text):
    with pytest.raises(InputError, match=r"^at: "):
        check_places(text)
    with pytest.raises(InputError, match=r"^--positions: "):
        check_places(text, "--positions")


@pytest.mark.parametrize("at", [8, ["last:2"], b"last:2"])
def test_what_is_no_text_is_refused(at):
    with pytest.raises(InputError, match="should be a text such as 'last:8'"):
        check_places(at)


@pytest.mark.parametrize("text, row", [("3", "row 1"), ("2:4", "row 1"), ("10", "row 0")])
def test_a_position_that_a_row_has_not_is_refused(text, row):
    with pytest.raises(InputError, match=f"^at: .*{row}"):
        places_in(text, [10, 3])
    with pytest.raises(InputError, match=f"^--positions: .*{row}"):
        places_in(text, [10, 3], "--positions")
