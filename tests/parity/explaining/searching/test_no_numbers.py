"""NaN tells where it was made: what is computed from it is right, and says nothing."""

import numpy as np
import pytest

from lockstep.parity.explaining.searching.no_numbers import MOST_LOST, lost_cells, with_noughts
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.rewrites import afterwards, only
from tests.parity.explaining.ports import explained, fault_of, graph_of, ids, port

NAN = np.nan


def spoilt(op, largest, by=NAN):
    """Return a bug that makes no numbers of an operation's where they are large."""
    change = afterwards(op, lambda ops, x: np.where(x > largest, x.dtype.type(by), x))
    return fault_of("spoilt", change)


@pytest.mark.parametrize(
    ("name", "op", "share", "by", "level"),
    [
        ("models/untied_float32", "silu", 0.2, NAN, "modules"),
        ("models/untied_float32", "silu", 0.2, NAN, "layers"),
        ("models/untied_float32", "silu", 0.6, NAN, "modules"),
        ("models/untied_float32", "silu", 0.6, NAN, "layers"),
        ("models/untied_float32", "silu", 0.3, np.inf, "modules"),
        ("qwen3_moe/separate", "experts", 0.3, NAN, "modules"),
        ("qwen3_moe/separate", "experts", 0.3, NAN, "layers"),
    ],
)
def test_a_bug_that_makes_no_numbers_is_named_and_what_it_spoils_is_not(name, op, share, by, level):
    """By law: so many of 20 tokens hold a number that is spoilt, in one layer."""
    call = next(call for call in graph_of(name).calls if call.op == op)
    right = port(name, level="taps")[call.taps[0]]
    bug = spoilt(op, np.quantile(right.max(axis=-1), 1 - share), by)
    taps = port(name, [bug.variants[""]], level=level, where=lambda one: one.layer == call.layer)
    lost = ~np.isfinite(taps["logits"])
    assert lost.any() and not lost.all()
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
@pytest.mark.parametrize("spoilt", [True, False])
def test_what_is_lost_with_a_bug_by_hand(lost, spoilt):
    right, made = np.ones((1, 10, 2)), np.ones((1, 10, 2))
    made[0, :lost, 1] = NAN
    port = made.copy()
    port[0, -1, 0] = NAN  # nothing made that
    found = lost_cells(port, right, made, axis=1, spoilt=made if spoilt else None)
    if not 0 < lost <= 10 * MOST_LOST:
        assert found is None
    else:
        assert found is not None and found[0].T.tolist() == [
            [False] * 10, [at < lost for at in range(10)]
        ]  # fmt: skip


def test_few_numbers_of_every_token_may_be_lost_with_a_bug_by_hand():
    """By hand: of four numbers in each of ten tokens one is; two are too many."""
    right = np.ones((1, 10, 4))
    for count, told in ((1, True), (2, False)):
        made = right.copy()
        made[..., :count] = NAN
        assert (lost_cells(made.copy(), right, made, axis=1) is not None) == told
        (port, wrong, other), spoilt = with_noughts(made[0].copy(), made[0], right[0])
        assert spoilt == (10 if told else 0)
        assert np.isfinite(port).all() == np.isfinite(wrong).all() == told
        assert (other == 0).sum() == (10 * count if told else 0)


@pytest.mark.parametrize("right", [NAN, np.inf])
def test_what_is_lost_without_a_bug_was_spoilt_before(right):
    """By hand: then it matters no more how it is no number."""
    port, made = np.array([[[NAN, np.inf, 1.0]]]), np.array([[[right, right, 1.0]]])
    assert lost_cells(port, made, made, axis=1) is None
    found = lost_cells(port, made, made, axis=1, spoilt=made)
    assert found is not None and found.tolist() == [[[True, True, False]]]


def test_what_an_engine_makes_of_an_infinity_is_its_own():
    """By hand: torch's SiLU of -inf is NaN, where the limit is -0; a quick GELU's is NaN too."""
    name = "models/untied_float32"

    def overflown(ops, x):
        return np.where(x < np.quantile(x, 0.01), x.dtype.type(-np.inf), x)

    def as_torch(ops, x):
        return np.where(x == 0, x.dtype.type(NAN), x)

    bug = fault_of("overflow", only(is_gate, afterwards("linear", overflown)))
    bugs = [bug.variants[""], afterwards("silu", as_torch)]
    taps = port(name, bugs, where=lambda one: one.layer == 1)
    found = explained(name, taps, [*catalogue(), bug])
    assert ids(found) == {"overflow"} and not found.unexplained


def is_gate(call, graph):
    return any(tap.endswith("gate_proj") for tap in call.taps)


def spoilt_token(ops, x):
    return np.where(np.arange(x.shape[1])[:, None] == 7, x.dtype.type(NAN), x)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("name", "level"),
    [("models/untied_float32", "taps"), ("models/untied_float32", "layers"),
     ("qwen3_moe/separate", "modules"), ("gemma4/sparse", "layers")],
)  # fmt: skip
def test_nothing_that_is_computed_from_nan_is_blamed(name, level, dtype, last):
    """By law: a token's embedding is NaN, and so are columns of scores, and all later tokens."""
    bug = afterwards("embedding", spoilt_token)
    taps = port(name, [bug], level=level, dtype=dtype)
    if last:
        taps["logits"] = taps["logits"][:, -1:]
    found = explained(name, taps)
    assert {one.tap for one in found.unexplained} == {"model.embed_tokens"} and not found.faults


@pytest.mark.parametrize(
    ("wrong", "made"),
    [
        ([[NAN, 2.1], [3.1, 4.1], [5.1, 6.1], [7.1, 8.1]], 1),
        ([[NAN, 2.1], [3.1, 4.1], [np.inf, 6.1], [7.1, 8.1]], 2),
        ([[1.1, 2.1], [NAN, 4.1], [-np.inf, 6.1], [7.1, 8.1]], 0),
        ([[NAN, NAN], [3.1, 4.1], [5.1, 6.1], [7.1, 8.1]], 0),
    ],
)
def test_tokens_that_are_lost_are_noughts_by_hand(wrong, made):
    port, right = np.array([[NAN, 2.0], [NAN, 4.0], [np.inf, 6.0], [7.0, 8.0]]), np.ones((4, 2))
    right[1] = NAN  # whoever is asked: it was lost before
    found, count = with_noughts(port, np.array(wrong), right)
    assert count == made
    for value, last in zip(found, ([7.0, 8.0], wrong[3], [1.0, 1.0]), strict=True):
        np.testing.assert_array_equal(value, [[0.0, 0.0]] * 3 + [last])
