"""Large arrays are worked on in portions: operations that do so give the bits of the whole."""

import numpy as np
import pytest

from lockstep.reference import portions
from lockstep.reference.ops import rms_norm, silu, softmax
from tests.draws import normal
from tests.tolerances import assert_same_bits

OPERATIONS = {
    "silu": lambda x, seen: silu(x),
    "rms_norm": lambda x, seen: rms_norm(x, normal(1, x.shape[-1]), eps=1e-6),
    "softmax": lambda x, seen: softmax(x, seen, masked_row="zero"),
}


@pytest.mark.parametrize("few", [1, 40, 90])
@pytest.mark.parametrize("lying", ["whole", "heads apart"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_portions_change_no_bit(name, lying, few, monkeypatch):
    """By law: of a row at a time, of some, of a last portion that is smaller."""
    x = normal(0, 2, 3, 7, 20)
    x = x if lying == "whole" else np.moveaxis(normal(0, 2, 7, 3, 20), 2, 1)
    seen = normal(2, 2, 1, 7, 20) > 0
    seen[1, 0, 3] = False
    whole = OPERATIONS[name](x, seen)
    monkeypatch.setattr(portions, "FEW", few)
    assert_same_bits(OPERATIONS[name](x, seen), whole)


@pytest.mark.parametrize("rows, width, few, expected", [(7, 3, 6, 4), (7, 3, 2, 7), (0, 3, 6, 0)])
def test_portions_make_up_all_rows(rows, width, few, expected, monkeypatch):
    """By hand: as many rows as hold `FEW` numbers, one at least; each row once, in order."""
    monkeypatch.setattr(portions, "FEW", few)
    found = list(portions.portions(rows, width))
    assert len(found) == expected
    assert [row for some in found for row in range(rows)[some]] == [*range(rows)]
