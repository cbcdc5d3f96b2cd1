"""The cache gone wrong in a prefill: on small models. The loops are in test_mask and test_rope."""

import pytest

from lockstep.parity.faults.kv_cache import FAULTS
from tests.parity.faults.planted import check_in_every_way, check_shows, variants

NAMES = ("llama/llama_dynamic", "gemma4/sparse")


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)
