"""What is done by so many tokens: by loop, and told from what a port dumped."""

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.numbers import NUMBERS
from lockstep.parity.faults.so_many_tokens import begun_anew, first_in_sight, rest_unread
from lockstep.parity.graph import Value
from lockstep.reference import ops
from tests.parity.explaining.ports import explained, port
from tests.parity.faults.hand_made import call, graph_of, wrong

LENGTH, WIDTH = 11, 6
RNG = np.random.default_rng(13)
POSITIONS = np.arange(LENGTH)[None]
X = RNG.standard_normal((1, 2, LENGTH, WIDTH))
SCORES = RNG.standard_normal((1, 2, LENGTH, LENGTH))


def test_positions_begin_anew_by_loop():
    frequencies = ops.rope_frequencies(theta=100.0, dims=WIDTH)
    graph = graph_of(
        call(0, "scale", X, by=1.0),
        call(1, "rope", Value(0), POSITIONS, frequencies, factor=1.0, place="self_attn.q_rope"),
    )
    found = wrong(graph, begun_anew().becomes(4))
    for token in range(LENGTH):
        one = ops.rope(X[:, :, [token]], np.array([[token % 4]]), frequencies, factor=1.0)
        np.testing.assert_allclose(found[:, :, [token]], one, atol=1e-13)


def attention(window=None, steps=()):
    return graph_of(
        call(0, "causal_mask", POSITIONS, POSITIONS, window=window),
        call(1, "scale", SCORES, by=1.0),
        call(2, "softmax", Value(1), Value(0), masked_row="uniform", layer=0),
        steps=steps,
    )


def check_shares(found, seen):
    """Hold shares against a loop over the keys that are `seen(query, key)`."""
    for head, query in np.ndindex(2, LENGTH):
        keys = [key for key in range(query + 1) if seen(query, key)]
        powers = np.exp(SCORES[0, head, query, keys])
        expected = np.zeros(LENGTH)
        expected[keys] = powers / powers.sum()
        np.testing.assert_allclose(found[0, head, query], expected, atol=1e-13)


def test_keys_behind_the_last_whole_block_by_loop():
    """Of eleven keys, eight are in whole blocks of four."""
    check_shares(wrong(attention(), rest_unread().becomes(4)), lambda query, key: key < 8)


def test_keys_behind_the_last_whole_block_of_each_pass_by_loop():
    """A prompt of six, and steps of three and two: of 6, 9 and 11 keys 4, 8 and 8 are read."""
    graph = attention(steps=(6, 9))
    ends = [6 // 4 * 4] * 6 + [9 // 4 * 4] * 3 + [11 // 4 * 4] * 2
    found = wrong(graph, rest_unread().becomes(4))
    check_shares(found, lambda query, key: key < ends[query])
    assert [*rest_unread().values(graph.calls[2], graph)] == [2, 4, 8]


def test_the_first_tokens_beside_a_window_by_loop():
    found = wrong(attention(window=3), first_in_sight().becomes(2))
    check_shares(found, lambda query, key: query - key < 3 or key < 2)


@pytest.mark.parametrize(
    ("name", "id", "number", "value", "said"),
    [
        ("models/untied_float32", "rope-positions-begin-anew", begun_anew(), 16,
         "positions begin anew every 16 tokens where there is none"),
        ("models/untied_float32", "mask-last-block-unread", rest_unread(), 8,
         "keys behind the last whole block of 8 where there is none"),
        ("llama/mistral_window", "mask-window-wrong", first_in_sight(), 2,
         "the window, and the first 2 tokens for 0"),
    ],
)  # fmt: skip
def test_the_number_is_found(name, id, number, value, said):
    known = [one for one in catalogue() if one.id in (id, *NUMBERS) or one.family == "mask"]
    taps = port(name, [number.becomes(value)], level="modules", length=20)
    found = explained(name, taps, known, length=20)
    assert not found.unexplained
    assert {(one.id, one.variant) for one in found.faults} == {(id, said)}
