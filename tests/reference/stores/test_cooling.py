"""A store that codes what is no longer new: which tokens are codes, and which are not. By loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference import ops
from lockstep.reference.caches import int8
from lockstep.reference.stores.codecs import Int8Codes
from lockstep.reference.stores.coded import decoded
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.cooling import Cooling
from tests.draws import normal

operations = st.lists(
    st.tuples(st.sampled_from(["step", "trim", "branch", "settle", "file"]), st.integers(0, 5)),
    max_size=10,
)


def cooling(recent: int) -> Cooling:
    return Cooling(Int8Codes(int8), Concatenating, decoded, recent)


def rounded(x: np.ndarray) -> np.ndarray:
    return int8.from_absmax(*int8.absmax(x, x.shape[-1]))


@settings(max_examples=150, deadline=None)
@given(operations=operations, recent=st.integers(0, 4))
def test_each_token_is_coded_once_when_it_is_no_longer_recent(operations, recent):
    """By loop: beside the store goes a list of tokens, and how many of them are codes."""
    store, tokens, coded = cooling(recent), np.zeros((1, 2, 0, 8)), 0
    tokens = tokens.astype(np.float32)
    left = []
    for number, (what, count) in enumerate([*operations, ("step", 1)]):
        length = tokens.shape[2]
        if what == "trim":
            tokens = tokens[:, :, : max(0, length - count)]
            continue
        if what == "branch":
            left.append((store.branch(), tokens, coded))
            continue
        coded = max(min(coded, length), length - recent, 0)
        if what == "settle":
            store.settle(ops, length)
        elif what == "file":
            store.settle(ops, length)
            other = cooling(recent)
            other.restore(ops, store.state(length))
            store = other
        else:
            new = normal(number, 1, 2, count, 8)
            held = store.append(ops, new, length)
            tokens = np.concatenate([tokens, new], axis=2)
            check(held, tokens, coded)
    for other, past, codes in left:
        new, start = normal(99, 1, 2, 1, 8), past.shape[2]
        codes = max(min(codes, start), start - recent, 0)
        check(other.append(ops, new, start), np.concatenate([past, new], axis=2), codes)


def check(held, tokens, coded) -> None:
    wanted = np.concatenate([rounded(tokens[:, :, :coded]), tokens[:, :, coded:]], axis=2)
    assert held.shape == tokens.shape
    np.testing.assert_array_equal(held, wanted)


def test_a_gap_or_another_dtype_is_refused():
    store, tokens = cooling(1), normal(0, 1, 1, 3, 8)
    store.append(ops, tokens, 0)
    with pytest.raises(ValueError, match="new tokens at 4, but the cache holds 3"):
        store.append(ops, tokens, 4)
    with pytest.raises(ValueError, match="but the cache holds float32"):
        store.append(ops, tokens.astype(np.float16), 3)
    assert store.coded == 0 and store.length == 3
