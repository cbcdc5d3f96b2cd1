"""What other pieces have in the place of a bug that one piece has alone. By hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.searching.lone import replaced, sure


def bugs(names):
    return frozenset(BUGS[name] for name in names)


class Bug(SimpleNamespace):
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


BUGS = {name: Bug(id=name, rank=rank) for rank, name in enumerate("abcdxy")}


@pytest.mark.parametrize(
    ("sets", "others", "tried"),
    [
        (["abx"], ["abc"], ["abc"]),
        (["abx"], ["ab", "cd"], ["abc", "abd"]),
        (["abx"], ["ac"], []),  # two of its bugs are its own
        (["abc"], ["abc", "d"], []),
        (["x"], ["a"], []),  # that is what a search tries by itself
        (["abx", "abd"], ["ab"], []),
        (["abx", "aby"], ["ab", "c"], ["abc"]),
    ],
)
def test_one_bug_is_replaced_by_those_that_others_must_have(sets, others, tried):
    found = replaced(map(bugs, sets), [*map(bugs, others)])
    assert [*found] == [*map(bugs, tried)]


def test_a_piece_must_have_what_all_its_explanations_share():
    assert sure(map(bugs, ["abx", "abd"])) == bugs("ab") and sure([]) == frozenset()
