"""Where the first tokens are right, no bug that moves them is tried beside others."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.right_beginning import (
    ENOUGH,
    leaving_right,
    right_tokens,
)
from tests.parity.explaining.ports import port
from tests.parity.explaining.searching.test_beginnings import LENGTH, NAME, in_second_layer
from tests.parity.explaining.searching.test_beginnings import search_over as search_over_taps

LATE = "mask-swa-off-by-one"
AT = 30  # the first wrong token


def search_over(bugs, late=0):
    taps = port(NAME, bugs, level="layers", where=in_second_layer, length=LENGTH)
    taps["model.layers.1"][:, LENGTH - late :] *= np.float32(1.5)
    return search_over_taps(taps)


def test_the_right_tokens_are_counted_up_to_the_first_wrong_one():
    """By hand: so many are as they should be."""
    assert right_tokens(search_over([], late=LENGTH - AT)) == AT
    assert right_tokens(search_over([])) == LENGTH
    assert right_tokens(search_over(["act-silu-vs-gelu[gelu (tanh) for silu]"])) == 0


def test_what_moves_right_tokens_is_left_out():
    """By law: an activation shows at each token, a window as wide as the prompt at none of them."""
    search = search_over([LATE])
    assert right_tokens(search) >= ENOUGH
    kept = {atom.hypothesis.id for atom in leaving_right(search, search.atoms)}
    assert LATE in kept and "act-silu-vs-gelu" not in kept
    assert len(leaving_right(search, search.atoms)) < len(search.atoms) / 2


@pytest.mark.parametrize("late", [LENGTH, LENGTH - ENOUGH + 1])
def test_few_right_tokens_rule_nothing_out(late):
    search = search_over([], late=late)
    assert leaving_right(search, search.atoms) == [*search.atoms]
