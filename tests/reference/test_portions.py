"""Large arrays are worked on in portions: operations that do so give the bits of the whole."""

import numpy as np
import pytest

from lockstep.reference import portions
from lockstep.reference.ops import rms_norm, rope, silu, softmax
from tests.draws import normal
from tests.tolerances import assert_same_bits

OPERATIONS = {
    "silu": lambda x, seen: silu(x),
    "rms_norm": lambda x, seen: rms_norm(x, normal(1, x.shape[-1]), eps=1e-6),
    "softmax": lambda x, seen: softmax(x, seen, masked_row="zero"),
}

LYING = {
    "whole": lambda x: x,
    "heads apart": lambda x: np.moveaxis(np.moveaxis(x, 1, 2).copy(), 2, 1),
    "columns": np.asfortranarray,
}


@pytest.mark.parametrize("few", [1, 40, 90])
@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("name", OPERATIONS)
def test_portions_change_no_bit(name, lying, few, monkeypatch):
    """By law: of a row at a time, of some, of a last portion that is smaller."""
    x = LYING[lying](normal(0, 2, 3, 7, 20))
    seen = normal(2, 2, 1, 7, 20) > 0
    seen[1, 0, 3] = False
    seen = LYING[lying](seen)
    whole = OPERATIONS[name](x, seen)
    monkeypatch.setattr(portions, "FEW", few)
    assert_same_bits(OPERATIONS[name](x, seen), whole)


@pytest.mark.parametrize("few", [1, 5000, 1 << 17])
@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_are_added_up_alike_however_they_lie(name, few, monkeypatch):
    """By law: the bits of rows that lie whole, where NumPy would add up columns side by side."""
    monkeypatch.setattr(portions, "FEW", few)
    x, seen = normal(0, 64, 1000), normal(2, 64, 1000) > 0
    assert_same_bits(
        OPERATIONS[name](*map(np.asfortranarray, (x, seen))), OPERATIONS[name](x, seen)
    )


def test_one_position_for_all_tokens_is_that_of_each_portion(monkeypatch):
    x, frequencies = normal(0, 1, 3, 7, 20), np.abs(normal(1, 10)).astype(np.float64)
    monkeypatch.setattr(portions, "FEW", 1)
    one, all_ = (
        rope(x, at, frequencies, factor=1.0) for at in (np.full((1, 1), 5), np.full((1, 7), 5))
    )
    assert_same_bits(one, all_)


@pytest.mark.parametrize("few", [1, 130, 1000])
@pytest.mark.parametrize("lying", LYING)
def test_some_tokens_at_a_time_are_turned_to_the_same_bits(lying, few, monkeypatch):
    """By law: of a token at a time, of two, of all; positions and frequencies of each row's own."""
    x, positions = (
        LYING[lying](normal(0, 2, 3, 7, 20)),
        np.array([[*range(7)], [9, 3, 4, 1, 8, 2, 2]]),
    )
    frequencies = np.abs(normal(1, 2, 10)).astype(np.float64)
    whole = rope(x, positions, frequencies, factor=1.25)
    monkeypatch.setattr(portions, "FEW", few)
    assert_same_bits(rope(x, positions, frequencies, factor=1.25), whole)


@pytest.mark.parametrize("few", [1, 3000, 1 << 17])
def test_keys_that_no_query_of_a_portion_sees_change_no_bit(few, monkeypatch):
    """By hand: the formula over all keys, masked ones at -inf. What they hold does not matter."""
    monkeypatch.setattr(portions, "FEW", few)
    scores, seen = normal(0, 2, 3, 40, 300), np.tril(np.ones((2, 1, 40, 300), bool), 150)
    seen[1, 0, :7] = False
    hidden = np.where(seen, scores, -np.inf)
    peak = np.where(seen.any(-1, keepdims=True), hidden.max(axis=-1, keepdims=True), 0)
    powers = np.exp(hidden - peak)
    total = powers.sum(axis=-1, keepdims=True)
    expected = np.where(total > 0, powers / np.maximum(total, 1e-30), 0).astype(np.float32)
    spoiled = np.where(seen, scores, np.nan)
    assert_same_bits(softmax(spoiled, seen, masked_row="zero"), expected)


@pytest.mark.parametrize("rows, width, few, expected", [(7, 3, 6, 4), (7, 3, 2, 7), (0, 3, 6, 0)])
def test_portions_make_up_all_rows(rows, width, few, expected, monkeypatch):
    """By hand: as many rows as hold `FEW` numbers, one at least; each row once, in order."""
    monkeypatch.setattr(portions, "FEW", few)
    found = list(portions.portions(rows, width))
    assert len(found) == expected
    assert [row for some in found for row in range(rows)[some]] == [*range(rows)]
