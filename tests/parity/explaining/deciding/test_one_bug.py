"""What fits in the place of one variant of a bug, and not of the others: by hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.deciding.one_bug import with_shared_ties
from lockstep.parity.explaining.deciding.verdict import Chosen

CALLS = [SimpleNamespace(place=place, op="scores") for place in ("attn", "attn", "head")]
GRAPH = SimpleNamespace(calls=CALLS)
LENGTH, OTHER = ("length", ""), ("other", "")


def bug(name, variant, call, *rivals):
    atom = SimpleNamespace(calls=frozenset([call]))
    hypothesis = SimpleNamespace(id=name, variant=variant)
    return (name, variant), Chosen(hypothesis, [None], [atom], [set(rivals)])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("second", "left"),
    [
        (bug("scale", "full", 1), set()),
        (bug("scale", "full", 1, LENGTH), {LENGTH}),
        (bug("scale", "full", 1, ("length", "another variant")), {LENGTH}),
        (bug("scale", "full", 2), {LENGTH, OTHER}),  # somewhere else: that may be another bug
        (bug("mask", "", 1), {LENGTH, OTHER}),
    ],
)
def test_a_tie_must_fit_wherever_the_bug_is(second, left):
    first = bug("scale", "sliding", 0, LENGTH, OTHER, ("scale", "full"))
    with_shared_ties(dict([first, second]), GRAPH)  # pyright: ignore[reportArgumentType]
    assert first[1].ties == left | {("scale", "full")}
