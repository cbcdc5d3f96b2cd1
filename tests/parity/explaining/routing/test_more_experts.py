"""A port whose router chose more experts than MODEL's, with what it chose in the dump."""

import pytest

from lockstep.parity.faults.numbers import NUMBERS
from tests.parity.explaining.ports import explained, ids, port

(EXPERTS_A_TOKEN,) = NUMBERS["moe-top-k-wrong"]


@pytest.mark.parametrize("name", ["gemma4/sparse", "qwen3_moe/fused"])
def test_experts_multiply_by_as_many_as_were_chosen(name):
    """By hand: one bug of the router, none of the experts."""
    taps = port(name, [EXPERTS_A_TOKEN.becomes(4)], level="taps")
    assert ids(explained(name, taps)) == {"moe-top-k-wrong"}
