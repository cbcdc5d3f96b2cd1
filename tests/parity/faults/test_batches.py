"""Batches gone wrong: key by key, as loops say. By loop and by hand."""

import numpy as np
import pytest

from lockstep.parity.explaining.steps.batch import filled, padded, positions_of
from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

LENGTH, WINDOW = 7, 3
PADS = np.array([[0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]], bool)
SCORES = np.random.default_rng(3).standard_normal((2, 1, LENGTH, LENGTH))
AT = positions_of(PADS)
STEPS = (5, 6)


def attending(window=None, steps=STEPS):
    graph = graph_of(
        call(0, "causal_mask", AT, AT, window=window),
        call(1, "scale", SCORES, by=1.0),
        call(2, "softmax", Value(1), Value(0), masked_row="uniform", layer=0),
        steps=steps,
    )
    return padded(graph, PADS)


def weights(seen, graph_rows=LENGTH):
    """Softmax over the keys j that query i of row b sees; who sees none weighs all there are."""
    out = np.zeros_like(SCORES)
    for b in range(2):
        for i in range(LENGTH):
            keys = [j for j in range(LENGTH) if seen(b, i, j)]
            powers = {j: np.exp(SCORES[b, 0, i, j]) for j in keys}
            if not keys:
                powers = {j: 1.0 for j in range(5 if i < 5 else i + 1)}
            for j, power in powers.items():
                out[b, 0, i, j] = power / sum(powers.values())
    return out


def right(b, i, j):
    return j <= i and not PADS[b, j]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("", lambda b, i, j: j <= i),
        ("in steps alone", lambda b, i, j: j <= i if i >= 5 else right(b, i, j)),
        ("the first row's mask for all", lambda b, i, j: j <= i),
    ],
)
def test_who_sees_what_fills_up(name, seen):
    """Judged at real tokens: what fills up is computed somehow."""
    got = wrong(attending(), variant("mask-padding-attended", name))
    wanted = weights(seen)
    np.testing.assert_allclose(got[~PADS[:, None]], wanted[~PADS[:, None]], atol=1e-12)


def test_the_mask_of_a_first_row_that_is_padded(monkeypatch):
    """By hand: tokens that it leaves nothing to see weigh all keys of their pass alike."""
    monkeypatch.setattr(f"{__name__}.PADS", PADS[::-1])
    monkeypatch.setattr(f"{__name__}.AT", AT[::-1])
    got = wrong(attending(), variant("mask-padding-attended", "the first row's mask for all"))
    wanted = weights(lambda b, i, j: j <= i and j > 1)
    np.testing.assert_allclose(got, wanted, atol=1e-12)
    np.testing.assert_allclose(got[1, 0, 0], [0.2] * 5 + [0, 0])


def test_a_window_that_counts_what_fills_up():
    """On the right of a row, where its steps come behind it."""
    name = "they count in the window, though nobody sees them"
    got = wrong(attending(WINDOW), variant("mask-padding-attended", name))
    wanted = weights(lambda b, i, j: right(b, i, j) and i - j < WINDOW)
    np.testing.assert_allclose(got[~PADS[:, None]], wanted[~PADS[:, None]], atol=1e-12)


def test_without_a_bug_what_fills_up_is_seen_by_nobody():
    got = wrong(attending(), lambda call, graph: call if call.op == "softmax" else None)
    np.testing.assert_allclose(got[~PADS[:, None]], weights(right)[~PADS[:, None]], atol=1e-12)


@pytest.mark.parametrize(
    ("id", "name", "second"),
    [
        ("kv-left-pad-merge", "", [0, 0, 0, 1, 2, 5, 6]),
        (
            "kv-left-pad-merge",
            "prompts by their places in the batch, steps by their length",
            [0, 1, 2, 3, 4, 3, 4],
        ),
        ("rope-batched-kernel", "in steps", [0, 0, 0, 1, 2, 5, 6]),
        ("rope-batched-kernel", "in the prompt", [0, 1, 2, 3, 4, 3, 4]),
        ("rope-batched-kernel", "everywhere", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_where_a_padded_row_thinks_it_is(id, name, second):
    """By hand: the second row has two tokens less than the first."""
    x = np.ones((2, 1, LENGTH, 4))
    rope = call(0, "rope", x, AT, np.array([0.3, 0.1]), factor=1.0, place="self_attn.q_rope")
    graph = padded(graph_of(rope, steps=STEPS), PADS)
    new = variant(id, name)(graph.calls[0], graph)
    assert new.inputs[1].change(None, AT).tolist() == [[*range(LENGTH)], second]


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6]),
        ("in steps alone", [0, 0, 0, 1, 2, 5, 6]),
        ("the first row's, in steps", [0, 0, 0, 1, 2, 5, 6]),
    ],
)
def test_rows_of_learned_positions(name, second):
    """By hand: a table of six rows has none for position 6."""
    table = np.ones((6, 2))
    lookup = call(0, "embedding", np.minimum(AT, 5), table, dtype=np.float32,
                  place="transformer.wpe")  # fmt: skip
    graph = padded(graph_of(lookup, steps=STEPS), PADS)
    new = variant("learned-pos-batch-shared-offset", name)(graph.calls[0], graph)
    found = new.inputs[0].change(None, np.minimum(AT, 5), table)[1].tolist()
    assert found == [min(one, 5) for one in second]


def test_positions_are_those_of_the_prompt_alone():
    """By hand."""
    assert AT.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]]
    right = positions_of(np.array([[0, 0, 1, 1, 0]], bool))
    assert right.tolist() == [[0, 1, 1, 1, 2]]
    assert filled([4, 5], 4, "left", 0) == [0, 0, 4, 5]
    assert filled([4, 5], 4, "right", 0) == [4, 5, 0, 0]


def test_a_dump_of_one_prompt_has_no_such_bugs():
    """By law: nothing of this family changes a graph without padding."""
    from lockstep.parity.faults.batches import FAULTS

    graph = graph_of(
        call(0, "causal_mask", AT, AT, window=None),
        call(1, "softmax", SCORES, Value(0), masked_row="uniform", layer=0),
        call(2, "rope", np.ones((2, 1, LENGTH, 4)), AT, np.ones(2), factor=1.0),
        steps=STEPS,
    )
    rewrites = [rewrite for fault in FAULTS for rewrite in fault.variants.values()]
    assert all(rewrite(one, graph) is None for rewrite in rewrites for one in graph.calls)
