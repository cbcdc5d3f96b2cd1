"""Which token stands in which slot: mlx-lm's traces by hand, and any steps by loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.ring import PADDING, Ring


def after(ring: Ring, held: np.ndarray, new: np.ndarray) -> Ring:
    """Return the ring behind a step of a text of which no position was forgotten."""
    return ring.after(held, new, np.arange(held.shape[1]), held.shape[1])


TRACES = [  # size, keep, how many come, what is held after the last of them
    (4, 0, [1] * 4, [0, 1, 2, 3]),
    (4, 0, [1] * 5, [4, 1, 2, 3]),
    (4, 0, [1] * 6, [4, 5, 2, 3]),
    (4, 0, [1] * 7, [4, 5, 6, 3]),
    (4, 0, [6], [0, 1, 2, 3, 4, 5]),
    (4, 0, [6, 1], [6, 3, 4, 5]),
    (4, 0, [6, 1, 1], [6, 7, 4, 5]),
    (4, 0, [6, 1, 1, 1], [6, 7, 8, 5]),
    (4, 0, [3], [0, 1, 2]),
    (4, 0, [3, 3], [0, 1, 2, 3, 4, 5]),
    (4, 0, [3, 3, 1], [6, 3, 4, 5]),
    (4, 0, [3, 3, 1, 2], [4, 5, 6, 7, 8]),
    (4, 1, [1] * 4, [0, 1, 2, 3]),
    (4, 1, [1] * 5, [0, 4, 2, 3]),
    (4, 1, [1] * 6, [0, 4, 5, 3]),
    (4, 1, [1] * 7, [0, 4, 5, 6]),
    (4, 1, [1] * 8, [0, 7, 5, 6]),
    (5, 1, [8], [0, 1, 2, 3, 4, 5, 6, 7]),
    (5, 1, [8, 1], [0, 8, 5, 6, 7]),
    (5, 1, [8, 1, 1], [0, 8, 9, 6, 7]),
    (5, 1, [8, 1, 1, 3], [0, 7, 8, 9, 10, 11, 12]),
]


def fed(ring: Ring, steps: list[int], held: np.ndarray | None = None) -> Ring:
    """Feed one row some tokens at a time."""
    held = np.zeros((1, 0), np.int64) if held is None else held
    for count in steps:
        new = np.arange(held.shape[1], held.shape[1] + count)[None]
        ring, held = after(ring, held, new), np.concatenate([held, new], axis=1)
    return ring


@pytest.mark.parametrize(("size", "keep", "steps", "slots"), TRACES, ids=str)
def test_the_order_of_mlx_lms_ring(size, keep, steps, slots):
    """By hand: traces of RotatingKVCache(max_size, keep); tests/peers has the class itself."""
    assert fed(Ring(size - keep, keep, "ring"), steps).slots.tolist() == slots
    temporal = fed(Ring(size - keep, keep, "ring", in_order=True), steps)
    assert temporal.slots.tolist() == sorted(slots)


def test_a_single_token_takes_the_slot_of_the_one_that_leaves():
    """By hand: nothing else is moved, however long the text gets."""
    ring = fed(Ring(3, 1, "ring"), [1] * 4)
    for number in range(4, 12):
        ring = after(ring, np.arange(number)[None], np.array([[number]]))
        assert ring.move.before is None and ring.move.total == 4
        assert ring.slots[ring.move.at] == number


SEEN = [  # of the three new ones in the last of mlx-lm's traces: [0 | 7 8 9 | 10 11 12]
    ("ring", [[0, 7, 8, 9, 10], [0, 8, 9, 10, 11], [0, 9, 10, 11, 12]]),
    ("columns", [[0, 7, 8, 9, 10], [7, 8, 9, 10, 11], [8, 9, 10, 11, 12]]),
]


@pytest.mark.parametrize(("rule", "seen"), SEEN)
def test_what_a_chunk_sees(rule, seen):
    """By hand: the kept token is seen by all; by mlx-lm's mask of columns, by the first alone."""
    ring = fed(Ring(4, 1, rule), [8, 1, 1, 3])
    keys, queries = np.arange(13)[None], np.array([[10, 11, 12]])
    places = ring.given(queries, keys[:, ring.slots])
    assert places.shape == (1, 3, 7)
    for query, row, wanted in zip(queries[0], places[0], seen, strict=True):
        assert [key for key in row if 0 <= key <= query] == wanted


def test_what_one_token_sees_needs_no_mask():
    ring = fed(Ring(4, 1, "ring"), [8, 1])
    assert ring.given(np.array([[8]]), ring.slots[None]).tolist() == [[0, 8, 5, 6, 7]]


@pytest.mark.parametrize("rule", ["ring", "columns"])
@pytest.mark.parametrize("size", [12, 13, 2**63, 2**70])
def test_a_ring_wider_than_the_text_hides_nothing_in_reach(rule, size):
    """By hand: of 12 tokens behind the first one, which is kept, and from 13 on anything."""
    ring = fed(Ring(size, 1, rule), [8, 1, 1, 3])
    queries = np.array([[10, 11, 12]])
    assert ring.slots.tolist() == [*range(13)]
    assert ring.given(queries, ring.slots[None]).tolist() == [[*range(13)]]


def test_a_window_needs_its_last_tokens_alone():
    """By hand: with a window of 3 a token sees itself and two before; a trim gives slots back."""
    ring = fed(Ring(3), [5])
    assert ring.slots.tolist() == [0, 1, 2, 3, 4]  # the first step is seen whole
    ring = fed(ring, [1], np.arange(5)[None])
    assert ring.slots.tolist() == [5, 3, 4]
    ring = fed(ring, [2], np.arange(6)[None])
    assert ring.slots.tolist() == [4, 5, 6, 7]
    ring = fed(ring, [1], np.arange(6)[None])  # 6 and 7 are forgotten
    assert ring.slots.tolist() == [4, 5, 6]


def test_what_was_dropped_cannot_be_needed_again():
    ring = fed(Ring(2), [4, 1])
    with pytest.raises(InputError, match="token 1 is needed again, but layers with a window have"):
        after(ring, np.arange(2)[None], np.array([[2]]))


def test_the_row_that_is_farthest_behind_decides():
    """By hand: the short row's tokens lie before its padding."""
    held = np.array([[0, 1, 2, 3], [0, 1, PADDING, PADDING]])
    ring = after(Ring(2), np.zeros((2, 0), np.int64), held)
    ring = after(ring, held, np.array([[4], [2]]))
    assert sorted(ring.slots.tolist()) == [1, 3, 4]


@settings(max_examples=120)
@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=1, max_size=7),
    size=st.integers(1, 6),
    keep=st.integers(0, 3),
    in_order=st.booleans(),
)
def test_each_query_sees_what_the_rule_says(steps, size, keep, in_order):
    """By loop: two rows of unequal steps, padded; every query against every token that came."""
    ring, held = Ring(size, keep, "ring", in_order), np.zeros((2, 0), np.int64)
    for lengths in steps:
        start = held.max(axis=1, initial=PADDING) + 1
        new = start[:, None] + np.arange(max(lengths))
        marked = np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], new, PADDING)
        ring = after(ring, held, marked)
        held = np.concatenate([held, marked], axis=1)
        assert len(set(ring.slots.tolist())) == len(ring.slots) == ring.move.total
        places = ring.given(new, held[:, ring.slots])
        for row in range(2):
            for place, query in enumerate(new[row][: lengths[row]]):
                given = places[row] if places.ndim == 2 else places[row, place]
                seen = sorted(key for key in given.tolist() if 0 <= key <= query)
                wanted = [key for key in held[row].tolist() if 0 <= key <= query
                          and (key < keep or query - key < size)]  # fmt: skip
                assert seen == wanted
