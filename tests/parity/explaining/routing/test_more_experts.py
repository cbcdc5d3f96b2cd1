"""A port whose router chose another number of experts than MODEL's."""

import pytest

from lockstep.parity.faults.numbers import NUMBERS
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

(EXPERTS_A_TOKEN,) = NUMBERS["moe-top-k-wrong"]
RIGHT = {"gemma4/sparse": 2, "qwen3_moe/fused": 3}


@pytest.mark.parametrize("name", RIGHT)
def test_experts_multiply_by_as_many_as_were_chosen(name):
    """By hand: one bug of the router, none of the experts, where the dump has what it chose."""
    taps = port(name, [EXPERTS_A_TOKEN.becomes(4)], level="taps")
    assert ids(explained(name, taps)) == {"moe-top-k-wrong"}


@sampled(1)
@pytest.mark.parametrize("level", ["taps", "modules", "layers"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", RIGHT)
def test_a_usual_number_has_its_name_from_layers_too(name, count, level):
    """By law. A choice that is lost, the last or all but the first, is the same where shares stay
    as they are.
    """
    if count == RIGHT[name]:
        count += 1
    found = explained(name, port(name, [EXPERTS_A_TOKEN.becomes(count)], level=level))
    (named,) = found.faults
    assert "moe-top-k-wrong" in {named.id, *named.also_fits}
    lost = {"moe-last-choice-lost"} if count > 1 else {"moe-last-choice-lost", "moe-sum-missing"}
    assert {named.id, *named.also_fits} <= {"moe-top-k-wrong"} | lost
