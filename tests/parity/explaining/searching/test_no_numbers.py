"""NaN tells where it was made: what is computed from it is right, and says nothing."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.no_numbers import MOST_LOST, lost_tokens, with_noughts
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import afterwards
from tests.parity.explaining.ports import explained, graph_of, ids, port

NAN = np.nan


def spoilt(op, largest):
    """Return a bug that makes NaN of an operation's numbers where they are large."""
    change = afterwards(op, lambda ops, x: np.where(x > largest, x.dtype.type(NAN), x))
    words = dict.fromkeys(("wrong", "right", "symptom", "where", "fix"), "")
    return Fault(id="spoilt", evidence=(), variants={"": change}, **words)


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize(
    ("name", "op", "share"),
    [
        ("models/untied_float32", "silu", 0.2),
        ("models/untied_float32", "silu", 0.6),
        ("qwen3_moe/separate", "experts", 0.3),
    ],
)
def test_a_bug_that_makes_nan_is_named_and_what_it_spoils_is_not(name, op, share, level):
    """By law: so many of 20 tokens hold a number that is made NaN, in one layer."""
    call = next(call for call in graph_of(name).calls if call.op == op)
    right = port(name, level="taps")[call.taps[0]]
    bug = spoilt(op, np.quantile(right.max(axis=-1), 1 - share))
    taps = port(name, [bug.variants[""]], level=level, where=lambda one: one.layer == call.layer)
    assert np.isnan(taps["logits"]).any() and not np.isnan(taps["logits"]).all()
    found = explained(name, taps, [*catalogue(), bug])
    assert ids(found) == {"spoilt"} and not found.unexplained


def test_what_is_nan_from_the_first_token_on_is_blamed_where_it_was_made():
    """By hand: a layer's output is lost, and nothing behind it holds a number."""
    name = "models/untied_float32"
    taps = port(name, level="layers")
    behind = [tap for tap in taps if tap not in ("model.embed_tokens", "model.layers.0")]
    found = explained(name, taps | {tap: np.full_like(taps[tap], NAN) for tap in behind})
    assert [one.tap for one in found.unexplained] == ["model.layers.1"]


@pytest.mark.parametrize("lost", [0, 1, 9, 10])
def test_tokens_that_are_lost_with_a_bug_by_hand(lost):
    right, made = np.ones((1, 10, 2)), np.ones((1, 10, 2))
    made[0, :lost, 1] = NAN
    found = lost_tokens(made.copy(), right, made, axis=1, spoilt=False)
    if not 0 < lost <= 10 * MOST_LOST:
        assert found is None
    else:
        assert found is not None and found.tolist() == [[at < lost for at in range(10)]]
    other = made.copy()
    other[0, -1, 0] = NAN  # nothing made that
    assert lost != 1 or lost_tokens(other, right, made, axis=1, spoilt=False).sum() == 1


def test_a_nought_stands_for_what_is_lost_by_hand():
    port, wrong, right = (np.array(one) for one in (
        [[NAN, 2.0], [NAN, 4.0], [np.inf, 6.0], [7.0, 8.0]],
        [[NAN, 2.1], [3.1, 4.1], [np.inf, 6.1], [NAN, 8.1]],
        [[1.0, 2.2], [NAN, 4.2], [-np.inf, 6.2], [7.2, 8.2]],
    ))  # fmt: skip
    found = with_noughts(port, wrong, right)
    for value, hand in zip(found, (
        [[0.0, 2.0], [0.0, 4.0], [0.0, 6.0], [7.0, 8.0]],
        [[0.0, 2.1], [3.1, 4.1], [0.0, 6.1], [NAN, 8.1]],
        [[1.0, 2.2], [0.0, 4.2], [-np.inf, 6.2], [7.2, 8.2]],
    ), strict=True):  # fmt: skip
        np.testing.assert_array_equal(value, np.array(hand))
