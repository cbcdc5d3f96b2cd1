"""Rotary positions gone wrong: against loops over pairs, and on small models."""

from math import cos, sin

import numpy as np
import pytest

from lockstep.parity.faults import rope, rope_tables
from lockstep.parity.faults.head_rows import halves_first, pairs_first
from lockstep.parity.graph import Graph, Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "llama/llama_dynamic", "models/tied_bfloat16", "gemma4/sparse", "llama/biased_llama3",
    "llama/llama_longrope",
)  # fmt: skip
HIDDEN = {
    "consistent-qk-permutation": "a convention: every score stays",
    "rope-pos-starts-at-1": "a convention: scores depend on differences alone",
}
DIMS, LENGTH, HEADS, THETA = 6, 5, 3, 100.0
FREQUENCIES = [THETA ** (-2 * j / DIMS) for j in range(DIMS // 2)]
HEADS_OF = np.random.default_rng(3).standard_normal((1, HEADS, LENGTH, DIMS))
POSITIONS = np.arange(LENGTH)[None]
FLIPPED = "rope-sign-flipped"


FAULTS = (*rope.FAULTS, *rope_tables.FAULTS)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def turn(tap: str = "self_attn.q_rope") -> Graph:
    return graph_of(
        call(0, "rope_frequencies", theta=THETA, dims=DIMS),
        call(1, "scale", HEADS_OF, by=1.0),
        call(2, "rope", Value(1), POSITIONS, Value(0), place=tap, layer=0, factor=1.0),
    )


def by_loop(angle, pair) -> np.ndarray:
    """Turn each pair by `angle(head, position, number)`."""
    out = np.zeros_like(HEADS_OF)
    for h in range(HEADS):
        for p in range(LENGTH):
            for j in range(DIMS // 2):
                one, two = pair(j)
                a, x, y = angle(h, p, j), HEADS_OF[0, h, p, one], HEADS_OF[0, h, p, two]
                out[0, h, p, one], out[0, h, p, two] = (
                    x * cos(a) - y * sin(a),
                    y * cos(a) + x * sin(a),
                )
    return out


def test_angles_of_neighbours_in_halves():
    """By loop: number i turns by the angle of pair i // 2, with the number half a head away."""
    out = np.zeros_like(HEADS_OF)
    for p in range(LENGTH):
        for i in range(DIMS):
            sign, other = (-1, i + DIMS // 2) if i < DIMS // 2 else (1, i - DIMS // 2)
            angle, x = p * FREQUENCIES[i // 2], HEADS_OF[0, :, p]
            out[0, :, p, i] = x[:, i] * cos(angle) + sign * x[:, other] * sin(angle)
    found = wrong(turn(), variant("rope-pairing-swapped", "in the angles alone"))
    np.testing.assert_allclose(found, out, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "signs"), [("neither half is", (1, 1)), ("both halves are", (-1, -1))]
)
def test_a_half_is_negated_that_should_not_be_by_loop(name, signs):
    """By loop: the minus belongs to the first half of `rotate_half` alone."""
    out = np.zeros_like(HEADS_OF)
    for p in range(LENGTH):
        for i in range(DIMS):
            half, x = i // (DIMS // 2), HEADS_OF[0, :, p]
            other, angle = (i + DIMS // 2) % DIMS, p * FREQUENCIES[i % (DIMS // 2)]
            out[0, :, p, i] = x[:, i] * cos(angle) + signs[half] * x[:, other] * sin(angle)
    found = wrong(turn(), variant("rope-sign-flipped", f"{name} negated"))
    np.testing.assert_allclose(found, out, atol=1e-13)


def in_halves(j: int) -> tuple[int, int]:
    return j, j + DIMS // 2


def plain(h: int, p: int, j: int) -> float:
    return p * FREQUENCIES[j]


@pytest.mark.parametrize(
    ("id", "name", "angle", "pair"),
    [
        ("rope-pairing-swapped", "", plain, lambda j: (2 * j, 2 * j + 1)),
        # A row in pairs has numbers 0 3 1 4 2 5: halves of it are (0, 4), (3, 2), (1, 5).
        ("rope-pairing-swapped", "halves, of rows in pairs", plain,
         lambda j: ((0, 4), (3, 2), (1, 5))[j]),
        ("rope-sign-flipped", "", lambda h, p, j: -plain(h, p, j), in_halves),
        ("rope-pos-starts-at-1", "", lambda h, p, j: plain(h, p + 1, j), in_halves),
        ("rope-axis-mixup", "", lambda h, p, j: plain(h, h, j), in_halves),
        ("rope-missing-on-layer-kind", "", lambda h, p, j: 0.0, in_halves),
        ("rope-theta-default", "base 10000", lambda h, p, j: p * 1e4 ** (-2 * j / DIMS), in_halves),
        ("rope-theta-default", "exponents j / D for 2j / D: the root of the base",
         lambda h, p, j: p * THETA ** (-j / DIMS), in_halves),
        ("rope-theta-default", "exponents 4j / D for 2j / D: the square of the base",
         lambda h, p, j: p * THETA ** (-4 * j / DIMS), in_halves),
        ("rope-theta-default", "exponents 2j / (D - 2): counted to 1",
         lambda h, p, j: p * THETA ** (-2 * j / (DIMS - 2)), in_halves),
        ("rope-theta-default", "exponents 2(j + 1) / D: counted from pair 1",
         lambda h, p, j: p * THETA ** (-2 * (j + 1) / DIMS), in_halves),
        ("rope-query-position-shifted", "queries one early", lambda h, p, j: plain(h, p - 1, j),
         in_halves),
        ("rope-applied-twice", "", lambda h, p, j: 2 * plain(h, p, j), in_halves),
        ("kv-offset-aliased", "", lambda h, p, j: plain(h, p + LENGTH, j), in_halves),
    ],
)  # fmt: skip
def test_by_loop(id, name, angle, pair):
    np.testing.assert_allclose(wrong(turn(), variant(id, name)), by_loop(angle, pair), atol=1e-14)


@pytest.mark.parametrize(("name", "mine"), [("the second half", 0), ("the first half", 1)])
def test_a_half_is_made_of_what_the_other_has_become_by_loop(name, mine):
    out, sign = np.array(HEADS_OF), (-1, 1)
    for h, p, j in np.ndindex(HEADS, LENGTH, DIMS // 2):
        own, other = (in_halves(j)[one] for one in (mine, 1 - mine))
        c, s = cos(plain(h, p, j)), sin(plain(h, p, j))
        out[0, h, p, own] = out[0, h, p, own] * c + sign[mine] * out[0, h, p, other] * s
        out[0, h, p, other] = out[0, h, p, other] * c + sign[1 - mine] * out[0, h, p, own] * s
    found = wrong(turn(), variant("rope-half-overwritten", name))
    np.testing.assert_allclose(found, out, atol=1e-14)


def test_keys_are_left_where_queries_are_shifted():
    keys = turn("self_attn.k_rope")
    assert variant("rope-query-position-shifted", "queries one late")(keys.calls[2], keys) is None


def test_a_wrong_pairing_of_a_wrong_base_by_loop():
    graph = turn()
    pairing, base = variant("rope-pairing-swapped"), variant("rope-theta-default", "base 10000")
    found = wrong(graph, lambda one, graph: base(one, graph) and pairing(base(one, graph), graph))
    expected = by_loop(lambda h, p, j: p * 1e4 ** (-2 * j / DIMS), lambda j: (2 * j, 2 * j + 1))
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize(
    ("id", "angle"),
    [
        ("rope-sign-flipped", lambda h, p, j: -plain(h, h, j)),
        ("rope-pos-starts-at-1", lambda h, p, j: plain(h, h + 1, j)),
        ("rope-missing-on-layer-kind", lambda h, p, j: 0.0),
    ],
)
def test_positions_read_off_the_wrong_axis_are_changed_further_by_loop(id, angle):
    """The catalogue's order is that in which bugs are put into a call."""
    order = [fault.id for fault in FAULTS]
    assert order.index("rope-axis-mixup") < order.index(id)
    axis, then, graph = variant("rope-axis-mixup"), variant(id), turn()
    found = wrong(graph, lambda one, graph: axis(one, graph) and then(axis(one, graph), graph))
    np.testing.assert_allclose(found, by_loop(angle, in_halves), atol=1e-14)


@pytest.mark.parametrize("shifted_first", [True, False])
def test_a_turn_backwards_is_that_of_the_positions_that_are_by_loop(shifted_first):
    """In whatever order the two are put into a call: it turns by -(p + 1), not by 1 - p."""
    graph = turn()
    late, back = variant("rope-query-position-shifted", "queries one late"), variant(FLIPPED)
    one, other = (late, back) if shifted_first else (back, late)
    found = wrong(graph, lambda call, graph: one(call, graph) and other(one(call, graph), graph))
    angle = lambda h, p, j: -plain(h, p + 1, j)  # noqa: E731
    np.testing.assert_allclose(found, by_loop(angle, in_halves), atol=1e-14)


def test_frequencies_in_half_by_loop():
    halves = [float(np.float16(one)) for one in FREQUENCIES]
    found = wrong(turn(), variant("rope-inv-freq-half", "frequencies in float16"))
    np.testing.assert_allclose(found, by_loop(lambda h, p, j: p * halves[j], in_halves), atol=1e-14)


def test_angles_in_half_by_loop():
    def angle(h: int, p: int, j: int) -> float:
        return float(np.float16(p * float(np.float16(FREQUENCIES[j]))))

    found = wrong(turn(), variant("rope-inv-freq-half", "angles in float16"))
    np.testing.assert_allclose(found, by_loop(angle, in_halves), atol=1e-14)


def test_tables_in_half_stay_within_their_rounding():
    right, found = (
        by_loop(plain, in_halves),
        wrong(turn(), variant("rope-cos-sin-half", "in bfloat16")),
    )
    error = np.abs(found - right).max()
    assert 1e-4 < error < 2**-8 * np.abs(HEADS_OF).max() * 2


def test_rows_by_hand():
    """Two heads of four rows: halves (0 1 | 2 3) lie as pairs 0 2 1 3 in a GGUF file."""
    rows = np.arange(8)
    assert pairs_first(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert halves_first(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert pairs_first(rows, 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert halves_first(rows, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert halves_first(pairs_first(rows, 2), 2).tolist() == rows.tolist()


def test_keys_of_many_heads_are_not_touched_where_counts_agree():
    """By law: with as many key heads as query heads the confusion has no effect."""
    rewrite = variant("rope-unpermute-gqa", "keys put back by the number of query heads")
    assert not world("gpt2/original").calls(rewrite)
    graph = world("gemma4/sparse").graph
    changed = {one.place for one in graph.calls if rewrite(one, graph) is not None}
    assert changed == {"self_attn.k_proj"}


@pytest.mark.parametrize(("name", "tap"), [("queries alone", "q"), ("keys alone", "k")])
def test_queries_or_keys_alone_are_turned_twice(name, tap):
    rewrite = variant("rope-applied-twice", name)
    for one in "qk":
        graph = turn(f"self_attn.{one}_rope")
        changed = any(rewrite(call, graph) is not None for call in graph.calls)
        assert changed == (one == tap)


@pytest.mark.parametrize(
    ("name", "order"),
    [("left in pairs, and put in pairs again", [0, 2, 4, 6, 1, 3, 5, 7]),
     ("put back twice", [0, 4, 1, 5, 2, 6, 3, 7])],
)  # fmt: skip
def test_rows_moved_twice_by_hand(name, order):
    """A head of eight rows: 0 4 1 5 2 6 3 7 are pairs, of which 0 2 4 6 1 3 5 7 are pairs again."""
    rows = np.arange(8.0)
    graph = graph_of(
        call(0, "linear", np.eye(8), np.diag(rows), rows, place="self_attn.q_proj", layer=0),
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    found = wrong(graph, variant("rope-unpermute-gqa", name))
    np.testing.assert_array_equal(found, np.diag(rows)[order].T + np.array(order))


def test_cosines_and_sines_exchanged_by_loop():
    """By law: turned by a right angle less the angle; all scores are those of turns backwards."""
    found = wrong(turn(), variant("rope-cos-sin-exchanged"))
    angle = lambda h, p, j: np.pi / 2 - plain(h, p, j)  # noqa: E731
    np.testing.assert_allclose(found, by_loop(angle, in_halves), atol=1e-14)
