"""A tensor cut to some tokens. By loop: each row is looked up by itself."""

import numpy as np
import pytest

from lockstep.parity.excerpts.excerpt import Excerpt, excerpt_of
from lockstep.reference.checkpoint.errors import InputError

ONE = Excerpt(((1, 4),), (6,))
TWO = Excerpt(((3, 4, 5), (1,)), (6, 2))


@pytest.mark.parametrize(
    "name, shape, axis",
    [
        ("model.layers.0", (1, 6, 5), 1),
        ("model.layers.0", (6, 5), 0),
        ("model.layers.0.self_attn.q_rope", (1, 3, 6, 5), 2),
        ("model.layers.0.self_attn.q_rope", (1, 6, 3, 5), 1),
        ("model.layers.0.self_attn.q_rope", (1, 6, 6, 5), 2),
        ("model.layers.0.self_attn.scores", (1, 3, 6, 6), 2),
        ("model.layers.0.self_attn.q_norm", (1, 6, 3, 5), 1),
        ("model.layers.0.self_attn.q_norm", (1, 3, 6, 5), 2),
        ("model.layers.0.self_attn.q_norm", (3, 6, 5), 1),
        ("model.layers.0.self_attn.q_norm", (1, 6, 6, 5), 1),
        ("vision_tower.patches", (1, 3, 6, 5), None),
        ("Qcur-3", (1, 6, 12), 1),
        ("model.layers.0.self_attn.cached_keys", (1, 3, 6, 5), None),
        ("step.1/model.layers.0", (1, 1, 5), None),
        ("model.layers.0", (1, 5, 5), None),
        ("scale", (), None),
    ],
)
def test_the_axis_of_tokens(name, shape, axis):
    assert ONE.axis(name, shape) == axis
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    wanted = x if axis is None else np.stack([x.take(1, axis), x.take(4, axis)], axis)
    assert np.array_equal(ONE.cut(name, x), wanted)


def test_rows_of_a_batch_are_cut_one_by_one_and_filled_up_with_zeros():
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 4)).astype(np.float32)
    found = TWO.cut("model.layers.0.self_attn.k_rope", x)
    assert found.shape == (2, 3, 3, 4) and found.dtype == x.dtype
    assert np.array_equal(found[0], x[0][:, 3:6])
    assert np.array_equal(found[1][:, :1], x[1][:, 1:2]) and not found[1][:, 1:].any()


def test_what_is_cut_holds_nothing_of_the_whole():
    assert ONE.cut("model.norm", np.zeros((1, 6, 5))).base is None


def test_tokens_and_their_positions_go_together():
    assert TWO.chosen([[9, 8, 7, 6, 5, 4], [3, 2]]).tolist() == [[6, 5, 4], [2, 0, 0]]
    assert TWO.positions.tolist() == [[3, 4, 5], [1, 0, 0]]


@pytest.mark.parametrize("at, beginning", [("first:2", True), ("0", True), ("last:2", False)])
def test_the_first_tokens_are_a_shorter_prompt(at, beginning):
    excerpt = excerpt_of(at, [6, 4])
    assert excerpt is not None and excerpt.is_beginning is beginning


def test_a_position_beyond_the_prompt_is_refused():
    with pytest.raises(InputError, match="the prompt has the positions 0 to 5"):
        excerpt_of("6", [6])


@pytest.mark.parametrize(
    "excerpt, said",
    [
        (ONE, "2 of 6 tokens: 1, 4"),
        (Excerpt(((0, 3, 4, 5),), (6,)), "4 of 6 tokens: 0, 3..5"),
        (TWO, "3 of 6, 1 of 2 tokens of the rows"),
    ],
)
def test_it_says_which(excerpt, said):
    assert excerpt.which == said
