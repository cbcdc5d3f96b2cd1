"""What is left out behind a value without a name may have been done before it. By law."""

import pytest

from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, ids, port

NAME = "gemma4/dense"
ORDER, STILL, GAIN = "qk-norm-rope-order", "rope-missing-on-layer-kind", "norm-plus-one-twice"


def found_in(bugs, unknown):
    known = [one for one in catalogue() if one.id in (ORDER, STILL, GAIN) and one.id != unknown]
    return explained(NAME, port(NAME, bugs), known)


def test_heads_that_turned_before_their_norm_are_not_said_to_stand_still():
    """By hand: the norms, and what comes of them, are wrong in each of three layers."""
    turned = f"{ORDER}[dumped behind both]"
    assert ids(found_in([turned], None)) == {ORDER}
    found = found_in([turned], ORDER)
    assert found.faults == [] and len(found.unexplained) == 9


@pytest.mark.parametrize("unknown", [GAIN, None])
def test_a_rope_that_is_missing_is_named_behind_a_norm_that_is_wrong_otherwise(unknown):
    """Such a norm is wrong at position 0 too, where no turn changes anything."""
    found = found_in([STILL, GAIN], unknown)
    assert STILL in ids(found) and (GAIN in ids(found)) == (unknown is None)
