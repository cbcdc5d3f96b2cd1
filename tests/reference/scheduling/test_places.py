"""What decides who sees whom: positions, or the order in the row. By hand."""

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.batch import Batch, places_of
from tests.parity.conftest import MODELS

TOKENS = np.zeros((2, 2), np.int64)
HELD = np.array([[0, 1, 9, 4], [0, -1, 6, -1]])  # one token and one of padding before the new ones


def batch():
    return Batch(TOKENS, HELD[:, 2:], HELD[:, 2:], None)


def test_positions_decide():
    new, held = places_of(batch(), HELD, reordered=False)
    assert new.tolist() == [[9, 4], [6, -1]] and held is HELD


def test_the_order_decides_and_padding_stays_hidden():
    new, held = places_of(batch(), HELD, reordered=True)
    assert new.tolist() == [[2, 3], [2, 3]]
    assert held.tolist() == [[0, 1, 2, 3], [0, -1, 2, -1]]


@pytest.mark.parametrize("load", [reference.load, fast.load], ids=["reference", "fast"])
def test_a_cache_that_drops_by_positions_is_refused(load):
    model = load(MODELS / "tied_bfloat16")
    cache = model.make_cache("rotating", size=4)
    with pytest.raises(InputError, match="drops tokens by their positions"):
        model.forward([[1, 2]], positions=np.array([[1, 0]]), cache=cache, reordered=True)
    assert cache.positions.length == 0
