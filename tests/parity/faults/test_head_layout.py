"""Rows cut into heads, and put together again, in another order: by index, and on small models."""

import numpy as np
import pytest

from lockstep.parity.faults.head_layout import FAULTS
from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants

NAMES = ("llama/biased_llama3", "gemma4/dense", "qwen3_moe/fused", "gpt2/variant")
BATCH, HEADS, LENGTH, WIDTH = 1, 4, 5, 6
POSITIONS = np.arange(LENGTH)[None]
RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((BATCH, LENGTH, HEADS * WIDTH))


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, {})


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


GIVEN = np.arange(BATCH * HEADS * LENGTH * WIDTH, dtype=float).reshape(BATCH, HEADS, LENGTH, WIDTH)


def merged():
    """Each token attends to itself alone: its heads are merged as they are."""
    probs = np.broadcast_to(np.eye(LENGTH), (BATCH, HEADS, LENGTH, LENGTH))
    return graph_of(
        call(0, "causal_mask", POSITIONS, POSITIONS, window=None),
        call(1, "attention_context", probs, GIVEN, Value(0), layer=0),
        call(2, "merge_heads", Value(1), layer=0),
    )


def test_heads_merged_as_they_lie_by_index():
    found = wrong(merged(), variant("head-merge-without-transpose"))
    np.testing.assert_array_equal(found, GIVEN.reshape(BATCH, LENGTH, HEADS * WIDTH))


def test_a_row_is_read_as_width_and_heads_by_loop():
    graph = graph_of(
        call(0, "scale", ROWS, by=1.0),
        call(1, "split_heads", Value(0), heads=HEADS, place="self_attn.q_norm"),
    )
    found = wrong(graph, variant("head-split-axes-swapped"))
    for head in range(HEADS):
        for number in range(WIDTH):
            expected = ROWS[0, :, number * HEADS + head]
            np.testing.assert_array_equal(found[0, :, head, number], expected)


def test_tokens_and_heads_are_viewed_in_one_go_by_loop():
    """By hand: number n of all rows in a line stands in head n // (L D), of token n // D % L."""
    graph = graph_of(
        call(0, "scale", ROWS, by=1.0),
        call(1, "split_heads", Value(0), heads=HEADS, place="self_attn.q_norm"),
    )
    found = wrong(graph, variant("head-split-without-transpose"))
    line, length = ROWS.ravel(), ROWS.shape[1]
    for number, value in enumerate(line):
        head, token = number // (length * WIDTH), number // WIDTH % length
        assert found[0, token, head, number % WIDTH] == value


def test_a_row_is_laid_out_as_width_and_heads_by_loop():
    found = wrong(merged(), variant("head-merge-axes-swapped"))
    for head, token, number in np.ndindex(HEADS, LENGTH, WIDTH):
        assert found[0, token, number * HEADS + head] == GIVEN[0, head, token, number]


def test_the_first_head_for_all_by_loop():
    found = wrong(merged(), variant("head-first-for-all"))
    for head in range(HEADS):
        there = slice(head * WIDTH, (head + 1) * WIDTH)
        np.testing.assert_array_equal(found[0, :, there], GIVEN[0, 0])


@pytest.mark.parametrize(("place", "heads"), [("self_attn.q_proj", 4), ("self_attn.k_proj", 2)])
def test_rows_of_a_matrix_as_width_and_heads_by_loop(place, heads):
    """Row d H + h of the port is row h D + d of the file."""
    x, weight = RNG.standard_normal((1, 3, 5)), RNG.standard_normal((heads * WIDTH, 5))
    graph = graph_of(
        call(0, "linear", x, weight, None, place=place, layer=0),
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    name = "rows of queries and keys laid out as (D, H)"
    found = wrong(graph, variant("head-split-axes-swapped", name))
    for head, number in np.ndindex(heads, WIDTH):
        row = weight[head * WIDTH + number]
        np.testing.assert_allclose(found[0, :, number * heads + head], x[0] @ row, atol=1e-13)
