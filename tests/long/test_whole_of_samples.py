"""All pairs of which the light tests try some: they need no peer, but minutes."""

import pytest

from tests.parity.chain.test_choices import SAMPLING, VARIANTS, found_among
from tests.parity.explaining.test_bad_dumps import DTYPES, VALUES, check_never_clean


def test_every_form_of_a_sampler_is_found_among_all():
    """By law: it is found beside every other mistake of samplers."""
    assert found_among(lambda one: SAMPLING) == VARIANTS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", VALUES)
def test_a_dump_of_one_number_is_never_clean(dtype, value):
    check_never_clean(dtype, value)
