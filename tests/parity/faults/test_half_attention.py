"""Attention in half precision in a port of float32: by loop."""

import numpy as np
import pytest

from lockstep.parity.faults.half_attention import OTHER
from lockstep.parity.graph import Value
from lockstep.reference.precision import dtype_named, rounded
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

RNG = np.random.default_rng(5)
HEADS, LENGTH, WIDTH, SCALE = 2, 6, 4, 0.3
QUERIES, KEYS, VALUES = RNG.standard_normal((3, 1, HEADS, LENGTH, WIDTH))
AT = np.arange(LENGTH)[None]


def attending(dtype=np.float64):
    return graph_of(
        *(call(n, "scale", x.astype(dtype), by=1.0) for n, x in enumerate((QUERIES, KEYS, VALUES))),
        call(3, "causal_mask", AT, AT, window=None),
        call(4, "attention_scores", Value(0), Value(1), scale=SCALE),
        call(5, "softmax", Value(4), Value(3), masked_row="uniform"),
        call(6, "attention_context", Value(5), Value(2), Value(3)),
    )


def averaged(score, powers, share):
    """Average in loops. `score` makes one of a product, `powers` those of a row less its largest,
    `share` weights of the powers as they are used and as they are summed.
    """
    out = np.zeros((1, HEADS, LENGTH, WIDTH))
    for head in range(HEADS):
        for token in range(LENGTH):
            some = [score(half(QUERIES)[0, head, token] @ half(KEYS)[0, head, key])
                    for key in range(token + 1)]  # fmt: skip
            row = np.exp(np.array(some) - max(some))
            weights = share(powers(row), row.sum())
            out[0, head, token] = weights @ half(VALUES)[0, head, : token + 1]
    return half(out)


def half(x):
    return rounded(np.asarray(x), dtype_named(NAME)).astype(np.float64)


NAME = ""


def as_it_is(x):
    return x


def scaled(product):
    return SCALE * product


def divided(row, total):
    return row / total


WAYS = {
    "": (scaled, as_it_is, divided),
    ", powers too": (scaled, lambda row: half(row), divided),
    ", each operation": (
        lambda product: half(SCALE * half(product)), as_it_is, lambda *row: half(divided(*row)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_what_is_rounded(name, way, monkeypatch):
    monkeypatch.setitem(globals(), "NAME", name)
    found = wrong(attending(), variant("attention-in-half", f"in {name}{way}"))
    np.testing.assert_allclose(found, averaged(*WAYS[way]), rtol=1e-12)


def test_which_score_is_taken_off_before_powers_are_rounded_is_the_kernels_own():
    """By law: in other arithmetic it is another one, so that the rounding differs; both are within
    two roundings of a weight.
    """
    rewrite = variant("attention-in-half", "in bfloat16, powers too")
    exact, way = (wrong(attending(dtype), rewrite) for dtype in (np.float64, np.float32))
    assert OTHER > 0
    assert 0 < np.abs(exact - way).max() < 2.0**-7 * np.abs(VALUES).max()


@pytest.mark.parametrize("way", WAYS)
def test_a_query_that_sees_nothing_is_as_it_was(way):
    """By hand: all weights alike, rounded as any others."""
    graph = graph_of(
        call(0, "scale", QUERIES[:, :, :1, :3], by=1.0),
        call(1, "softmax", Value(0), np.zeros((1, 1, 1, 3), bool), masked_row="uniform"),
    )
    rewrite = variant("attention-in-half", f"in bfloat16{way}")
    if not way:
        assert all(rewrite(one, graph) is None for one in graph.calls)
        return
    third = half_of(1 / 3) if "each" in way else 1 / 3
    np.testing.assert_allclose(wrong(graph, rewrite), np.full((1, HEADS, 1, 3), third))


def half_of(x):
    return float(rounded(np.array([x]), dtype_named("bfloat16"))[0])
