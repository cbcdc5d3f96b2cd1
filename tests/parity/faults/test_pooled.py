"""One cache for all layers, or another layer's: by loop, on two or three layers of one head."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

RNG = np.random.default_rng(6)
LENGTH, WIDTH, LAYERS = 5, 4, 3
QUERIES, KEYS, VALUES = RNG.standard_normal((3, LAYERS, 1, 1, LENGTH, WIDTH))
AT, BY = np.arange(LENGTH)[None], np.array([0.7, 0.2])


def attending(layers=LAYERS, window=None, steps=()):
    """Layers of attention that take nothing from each other."""
    calls = [call(0, "causal_mask", AT, AT, window=window)]
    for layer in range(layers):
        first = len(calls)
        given = (QUERIES[layer], KEYS[layer], VALUES[layer])
        calls += [call(first + n, "scale", x, by=1.0) for n, x in enumerate(given)]
        calls += [
            call(first + 3, "rope", Value(first), AT, BY, factor=1.0),
            call(first + 4, "rope", Value(first + 1), AT, BY, factor=1.0),
            call(first + 5, "attention_scores", Value(first + 3), Value(first + 4), scale=0.5,
                 layer=layer),
            call(first + 6, "softmax", Value(first + 5), Value(0), masked_row="uniform",
                 layer=layer),
            call(first + 7, "attention_context", Value(first + 6), Value(first + 2), Value(0),
                 layer=layer),
        ]  # fmt: skip
    return graph_of(*calls, steps=steps)


def turned(x, position):
    c, s = np.cos(position * BY), np.sin(position * BY)
    a, b = x[:2], x[2:]
    return np.concatenate([a * c - b * s, b * c + a * s])


def attended(layer, held):
    """Average what each token of a layer sees: `held(token)` yields keys as they were turned, and
    values.
    """
    out = np.zeros((1, 1, LENGTH, WIDTH))
    for token in range(LENGTH):
        seen = [*held(token)]
        query = turned(QUERIES[layer, 0, 0, token], token)
        powers = np.array([np.exp(0.5 * query @ key) for key, _ in seen])
        out[0, 0, token] = sum(p * value for p, (_, value) in zip(powers, seen, strict=True))
        out[0, 0, token] /= powers.sum()
    return out


@pytest.mark.parametrize(("name", "far"), [
    ("", 0), ("positions counted on", LENGTH), ("seen by their positions", 0),
])  # fmt: skip
def test_all_layers_put_into_one_cache(name, far):
    """By loop: all that earlier layers put there is seen, or what is not later; or all of it from
    farther off.
    """
    last = LAYERS - 1

    def held(token):
        for layer in range(last):
            for j in range(token + 1 if name.startswith("seen") else LENGTH):
                position = j - (last - layer) * far
                yield turned(KEYS[layer, 0, 0, j], position), VALUES[layer, 0, 0, j]
        for j in range(token + 1):
            yield turned(KEYS[last, 0, 0, j], j), VALUES[last, 0, 0, j]

    found = wrong(attending(), variant("kv-one-for-all-layers", name))
    np.testing.assert_allclose(found, attended(last, held), atol=1e-12)


@pytest.mark.parametrize(("name", "layer"), [("the first layer", 0), ("the layer before", 1)])
def test_keys_and_values_of_another_layer(name, layer):
    def held(token):
        for j in range(token + 1):
            yield turned(KEYS[layer, 0, 0, j], j), VALUES[layer, 0, 0, j]

    found = wrong(attending(), variant("kv-of-other-layer", f"{name}, in the prompt too"))
    np.testing.assert_allclose(found, attended(LAYERS - 1, held), atol=1e-12)


@pytest.mark.parametrize("graph", [
    attending(layers=1), attending(window=3), attending(steps=(3,)),
], ids=["one layer", "a window", "steps"])  # fmt: skip
def test_where_one_cache_is_nothing(graph):
    for name in ("", "positions counted on", "seen by their positions"):
        rewrite = variant("kv-one-for-all-layers", name)
        assert all(rewrite(one, graph) is None for one in graph.calls)


def test_keys_of_another_shape_are_nobody_elses():
    """By hand: the second layer has keys of half the width."""
    narrow = RNG.standard_normal((2, 1, 1, LENGTH, 2))
    given = (QUERIES[0], KEYS[0], *narrow)
    graph = graph_of(
        *(call(n, "scale", x, by=1.0) for n, x in enumerate(given)),
        call(4, "attention_scores", Value(0), Value(1), scale=0.5, layer=0),
        call(5, "attention_scores", Value(2), Value(3), scale=0.5, layer=1),
    )
    rewrite = variant("kv-of-other-layer", "the first layer, in the prompt too")
    assert all(rewrite(one, graph) is None for one in graph.calls)


def test_a_layer_that_shares_may_read_the_first_of_its_kind():
    """By hand: layers 0 and 1 slide, and 3, which shares layer 1's; 4 shares those of 2."""
    donors, kinds = (0, 1, 2, 1, 2), "SSFSF"
    held = RNG.standard_normal((3, 1, 1, LENGTH, WIDTH))
    graph = graph_of(
        *(call(n, "scale", x, by=1.0) for n, x in enumerate(held)),
        *(
            call(3 + layer, "attention_scores", QUERIES[0], Value(donor), scale=1.0, layer=layer)
            for layer, donor in enumerate(donors)
        ),
        layer_types=kinds,
    )
    rewrite = variant("kv-sharing-ignored", "keys and values of the first layer of its kind")
    found = {one.layer: rewrite(one, graph) for one in graph.calls if one.layer is not None}
    (changed,) = (one for one in found.values() if one is not None)
    assert changed.layer == 3
    scores = wrong(replace(graph, calls=graph.calls[:7]), rewrite)
    np.testing.assert_allclose(scores, QUERIES[0] @ held[0].swapaxes(2, 3), rtol=1e-12)
