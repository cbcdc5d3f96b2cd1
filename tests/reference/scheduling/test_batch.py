"""Token ids on their way into a model."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.batch import BatchRules
from lockstep.reference.stores.held_positions import HeldPositions

RULES = BatchRules(Path("some/model"), vocab_size=10)


def batch(tokens, *, lengths=None, positions=None, held=None, last_only=True, only=None):
    return RULES.batch(
        tokens,
        lengths=lengths,
        positions=positions,
        held=HeldPositions() if held is None else held,
        last_only=last_only and only is None,
        only=only,
    )


def test_rows_of_one_length():
    """By hand: positions from 0, no padding, the last token last."""
    made = batch([[1, 2, 3], [4, 5, 6]])
    assert made.tokens.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert made.positions.tolist() == made.marked.tolist() == [[0, 1, 2]] * 2
    assert made.wanted.tolist() == [2, 2]
    assert made.tokens.dtype == made.positions.dtype == np.int64


def test_padded_rows():
    """By hand: what lies behind a row's length stands nowhere."""
    made = batch([[1, 2, 3], [4, 0, 0]], lengths=[3, 1])
    assert made.marked.tolist() == [[0, 1, 2], [0, -1, -1]]
    assert made.positions.tolist() == [[0, 1, 2]] * 2
    assert made.wanted.tolist() == [2, 0]


def test_some_tokens_that_get_logits():
    """By hand: in any order, one twice; of a padded row the real ones."""
    made = batch([[1, 2, 3], [4, 5, 0]], lengths=[3, 2], only=[[2, 0, 0], [1, 0, 1]])
    assert made.wanted.tolist() == [[2, 0, 0], [1, 0, 1]]
    assert batch([[1, 2]], only=np.zeros((1, 0), np.int64)).wanted.shape == (1, 0)


WANTED = ([[2]], [[-1]], [[0], [0]], [0], [[0.5]])


@pytest.mark.parametrize("only", WANTED)
def test_tokens_that_are_not_there_get_no_logits(only):
    """By law: beside the row, or in its padding, or of another batch."""
    with pytest.raises(InputError, match=r"logits are wanted of .*, but should be of tokens"):
        batch([[1, 2, 0]], lengths=[2], only=only)


def test_positions_go_on_from_the_cache():
    """By hand: each row from its own last token."""
    held = HeldPositions()
    held.extend(batch([[1, 2, 3], [4, 0, 0]], lengths=[3, 1]).marked)
    assert batch([[5], [6]], held=held).positions.tolist() == [[3], [1]]


def test_positions_of_ones_own():
    """By hand: any order, repeats; padding is marked all the same."""
    made = batch([[1, 2, 3]], positions=[[5, 5, 2]], lengths=[2])
    assert made.positions.tolist() == [[5, 5, 2]]
    assert made.marked.tolist() == [[5, 5, -1]]


@pytest.mark.parametrize("tokens", [[[]], [[], []], np.zeros((0, 3), np.int32), np.zeros((0, 0))])
def test_no_tokens(tokens):
    """By hand: an empty batch is one."""
    made = batch(tokens, last_only=False)
    assert made.wanted is None
    assert made.tokens.shape == np.asarray(tokens).shape
    assert made.tokens.dtype == np.int64


@settings(max_examples=40)
@given(data=st.data(), rows=st.integers(1, 4), longest=st.integers(1, 6))
def test_marks_exactly_the_real_tokens(data, rows, longest):
    """By loop: token l of row b is real if l < lengths[b]; `last` is the last of those."""
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=rows, max_size=rows))
    made = batch(np.ones((rows, longest), np.int8), lengths=lengths)
    for row, length in enumerate(lengths):
        assert made.marked[row].tolist() == [*range(length), *[-1] * (longest - length)]
        assert made.wanted[row] == length - 1


WRONG = [  # tokens, options, what the error says
    ([[]], {}, "the last token is wanted, but there are no tokens"),
    ([[1, 2]], {"lengths": [1.5]}, r"lengths=\[1.5\], but should be 1 of 1..2"),
    ([[1, 2]], {"positions": [[0.0, 1.5]]}, "positions are float64"),
    ([1, 2], {}, r"integers of shape \(batch, length\)"),
    ([[[1]]], {}, r"shape \(1, 1, 1\)"),
    (3, {}, r"shape \(\)"),
    ([[1.0]], {}, "tokens are float64"),
    ([["a"]], {}, "tokens are <U1"),
    ([[True]], {}, "tokens are bool"),
    ([[1, -1]], {}, r"token id -1, but should be 0\.\.9 \(row 0, token 1\)"),
    ([[1], [10]], {}, r"token id 10, but should be 0\.\.9 \(row 1, token 0\)"),
    ([[2**31]], {}, f"token id {2**31}"),
    (np.array([[2**64 - 1]], np.uint64), {}, f"token id {2**64 - 1}"),
    ([[1, 2]], {"lengths": [0]}, r"lengths=\[0\], but should be 1 of 1\.\.2"),
    ([[1, 2]], {"lengths": [3]}, r"lengths=\[3\]"),
    ([[1, 2]], {"lengths": [1, 1]}, r"lengths=\[1, 1\]"),
    (
        [[1, 2]],
        {"positions": [[1]]},
        r"of shape \(1, 1\), but should be .* \(1, 2\)",
    ),
    ([[1, 2]], {"positions": [[0, -1]]}, "none negative"),
    ([[1, 2]], {"positions": [[0, 1 << 24]]}, "position 16777216, but should be below 16777216"),
    ([[1, 2], [3]], {}, "rows of tokens are not equally long; pad them, and say lengths="),
]


@pytest.mark.parametrize("tokens, options, words", WRONG)
def test_what_is_wrong_is_named(tokens, options, words):
    """By law: one line that begins with the model's path."""
    with pytest.raises(InputError, match=words) as error:
        batch(tokens, **options)
    assert str(error.value).startswith("some/model: ")
    assert "\n" not in str(error.value)


def test_another_number_of_rows_than_the_cache_holds():
    """By law: one cache serves one batch."""
    held = HeldPositions()
    held.extend(np.zeros((2, 1), np.int64))
    with pytest.raises(InputError, match="1 rows, but the cache holds 2"):
        batch([[1]], held=held)


def test_nothing_is_noted_before_everything_is_checked():
    """By law: a refused batch leaves the cache as it was."""
    held = HeldPositions()
    with pytest.raises(InputError):
        batch([[99]], held=held)
    assert held.length == 0


def test_callers_keep_their_array():
    """By law: what is made from it is a copy."""
    tokens = np.array([[1, 2]])
    batch(tokens).tokens[0, 0] = 7
    assert tokens.tolist() == [[1, 2]]
