"""Averages by attention in a batch, where one row's values are no numbers."""

import numpy as np

from lockstep.parity.graph.batched import at_once
from lockstep.parity.graph.by_rows import by_rows
from lockstep.reference.ops import attention_context as average
from tests.parity.graph.witnesses import run

ROWS, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 3, 4, 2, 5, 6, 8


def test_no_row_hangs_on_the_numbers_of_another():
    """By law: each row is what it is alone, though the operation looks at the mask for one of them.

    The probabilities go beyond the mask, as those of a wrong softmax do.
    """
    rng = np.random.default_rng(0)
    probs = rng.random((ROWS, HEADS, QUERIES, KEYS))
    values = rng.standard_normal((ROWS, GROUPS, KEYS, WIDTH))
    values[1, 0, 3] = np.nan
    mask = np.tril(np.ones((QUERIES, KEYS), bool))[None, None]
    every = by_rows(average, probs, values, mask)
    for row in range(ROWS):
        alone = average(probs[row : row + 1], values[row : row + 1], mask)
        np.testing.assert_array_equal(every[row], alone[0])
    assert not np.array_equal(every[0], average(probs, values, mask)[0])


def test_rows_may_share_probabilities_or_values():
    """By law: what has one row has it for all."""
    rng = np.random.default_rng(1)
    probs = rng.random((ROWS, HEADS, QUERIES, KEYS))
    values = rng.standard_normal((1, GROUPS, KEYS, WIDTH))
    values[0, 1, 2] = np.inf
    mask = np.ones((1, 1, QUERIES, KEYS), bool)
    every = by_rows(average, probs, values, mask)
    assert every.shape == (ROWS, HEADS, QUERIES, WIDTH)
    np.testing.assert_array_equal(every[2], average(probs[2:], values, mask)[0])


def even(ops, probs):
    """Let every query see all keys, whatever its mask says."""
    return np.full_like(probs, 1 / probs.shape[-1])


def nothing(ops, values):
    return np.full_like(values, np.nan)


def test_a_rewrite_without_numbers_spoils_none_beside_it():
    """By law: what eight rewrites give side by side is what each gives alone."""
    one = run("models/untied_float32")
    taps, calls, run_of = one.graph.taps, one.graph.calls, one.evaluator
    places = (taps[f"model.layers.1.self_attn.{name}"] for name in ("probs", "v_proj"))
    (wide, values), logits = places, taps["logits"]
    some = [{wide: calls[wide].followed(even)}, {values: calls[values].followed(nothing)}] * 4
    for found, rewrite in zip(at_once(run_of(), logits, some), some, strict=True):
        assert found is not None
        np.testing.assert_allclose(found, run_of().target(logits, rewrite), rtol=1e-4, atol=1e-6)
