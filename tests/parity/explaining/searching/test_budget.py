"""What a search may compute. By hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.searching.budget import Budget


def test_it_counts_from_where_it_began_and_leaves_out_what_it_is_told_to():
    trial = SimpleNamespace(count=5)
    budget = Budget(trial, 3)  # pyright: ignore[reportArgumentType]
    budget.begin()
    trial.count += 2
    with budget.uncounted():
        trial.count += 10
        with budget.uncounted():
            trial.count += 10
    assert budget.used == 2 and not budget.spent
    trial.count += 2
    assert budget.used == 4 and budget.spent


def test_it_may_be_another_one_for_a_while():
    trial = SimpleNamespace(count=2)
    budget = Budget(trial, 3)  # pyright: ignore[reportArgumentType]
    with budget.of(1):
        assert budget.spent
    assert not budget.spent


def test_an_error_on_the_way_leaves_it_as_it_was():
    budget = Budget(SimpleNamespace(count=2), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="shapes"), budget.of(1):
        raise ValueError("shapes")
    assert budget.limit == 3
