"""The search that adds bug after bug: when it ends, and what it goes on with."""

from functools import partial
from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.searching.by_few_tokens import DEEPEST
from lockstep.parity.explaining.searching.growing import Growing
from lockstep.parity.explaining.searching.hypothesis import Atom
from tests.parity.explaining.searching.made_up import sets
from tests.parity.explaining.searching.test_search import search_in


def test_the_deepest_sets_of_a_stage_are_the_last(monkeypatch):
    """By hand: none is computed that nobody would look at."""
    search, both = search_in({"act-silu-vs-gelu": "gelu (tanh) for silu"}, "float32")
    grown = iter([[both]])
    monkeypatch.setattr(search, "accepts", lambda *_: False)
    monkeypatch.setattr(search, "grown", lambda *_, keep: next(grown))
    assert search.stage([frozenset()], search.atoms, 1, 0, deepest=1) == []


@pytest.mark.parametrize(("rows", "steps"), [(None, 3), (1, DEEPEST)])
def test_a_search_of_all_tokens_that_gets_no_nearer_ends(rows, steps, monkeypatch):
    """By hand: two steps leave what the first one left. The first tokens may hide what is near."""
    search, both = search_in({"act-silu-vs-gelu": "gelu (tanh) for silu"}, "float32")
    grown: list[frozenset[Atom]] = []
    monkeypatch.setattr(search, "accepts", lambda *_: False)
    monkeypatch.setattr(search, "finished", lambda *_: [])
    monkeypatch.setattr(search, "grown", lambda *_, keep: grown.append(both) or [both])
    assert search.stage([frozenset()], search.atoms, rows, 0) == []
    assert len(grown) == steps


@pytest.mark.parametrize("patient", [False, True])
def test_a_set_that_a_bug_more_leaves_as_it_was_is_gone_on_from_by_the_patient(patient):
    """By hand: beside a mask that masks nothing, its number does nothing; a scale does."""
    (missing,), (number,), (scale,) = sets("missing", "number", "scale")
    for atom in (missing, number, scale):
        object.__setattr__(atom.hypothesis, "fault", SimpleNamespace(acausal=False))
    fits = {frozenset([missing, scale]): (1.0, 1.0, 1.0)}
    search = SimpleNamespace(
        alone=lambda atom: frozenset([atom]), large=lambda some, *_: some,
        small=lambda *_: 0.0, spent=False, patient=patient,
        fit=lambda atoms, *_: fits.get(atoms, (3.0, 2.0, 2.0)), look_at=lambda some, rows: None,
    )  # fmt: skip
    search.larger = partial(Growing.larger, search)  # pyright: ignore[reportArgumentType]
    found = Growing.grown(search, [frozenset([missing])], [number, scale], None, 0, 8)  # pyright: ignore[reportArgumentType]
    more = [frozenset([missing, number])] if patient else []
    assert found == [frozenset([missing, scale]), *more]


@pytest.mark.parametrize(("coarse", "tried"), [(True, True), (False, False)])
def test_beside_a_coarse_bug_a_small_one_does_not_wait(coarse, tried):
    """By hand: a rounded softmax turns what moves a score by 9 noises into 6,000."""
    (softmax,), (rounded,) = sets("softmax", "rounded")
    search = SimpleNamespace(
        coarse=lambda atoms: coarse, fit=lambda *_: (6000.0, 5900.0, 5500.0),
        alone=lambda atom: frozenset([atom]),
        large=lambda some, least, *_: some if least <= 9.0 else [],
    )  # fmt: skip
    search.small = partial(Growing.small, search)  # pyright: ignore[reportArgumentType]
    found = Growing.larger(search, [frozenset([softmax])], [rounded], None, 0)  # pyright: ignore[reportArgumentType]
    assert (frozenset([softmax, rounded]) in found) is tried
