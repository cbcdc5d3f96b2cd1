"""Masks gone wrong: by the rule of each, key by key, and on small models."""

import numpy as np
import pytest

from lockstep.parity.faults import mask, masked_scores
from lockstep.parity.graph import Conflict, Graph, Value
from lockstep.parity.noise import of_port
from lockstep.reference import ops
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants

FAULTS = (*mask.FAULTS, *masked_scores.FAULTS)
NAMES = ("llama/mistral_window", "llama/qwen2_yarn", "gemma4/sparse", "gemma4/dense")
HIDDEN = {
    "mask-causal-missing[in all chunks of a prompt but the first]": "no pass here is a chunk",
    "mask-causal-missing[in all these, and no window]": "no pass here is a chunk",
    "mask-sentinel-too-small[lowered by 10000]": "no score of a tiny model is that large",
    "mask-sentinel-too-small[lowered by 100]": "no score of a tiny model is that large",
}
LENGTH, WINDOW = 7, 3
SCORES = np.random.default_rng(7).standard_normal((1, 2, LENGTH, LENGTH)) * 3
POSITIONS = np.arange(LENGTH)[None]


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def full(scores: np.ndarray) -> Graph:
    return sliding(scores, window=None)


def sliding(scores: np.ndarray = SCORES, window: int | None = WINDOW) -> Graph:
    return graph_of(
        call(0, "causal_mask", POSITIONS, POSITIONS, window=window),
        call(1, "scale", scores, by=1.0),
        call(2, "softmax", Value(1), Value(0), masked_row="uniform", layer=0),
    )


def probabilities(score, scores: np.ndarray = SCORES) -> np.ndarray:
    """Softmax over `score(s, i, j)`, None for a key that is not seen; blind rows see all alike."""
    out = np.zeros_like(scores)
    for head in range(scores.shape[1]):
        for i in range(LENGTH):
            row = [score(scores[0, head, i, j], i, j) for j in range(LENGTH)]
            powers = np.array([0.0 if one is None else np.exp(one) for one in row])
            total = powers.sum()
            out[0, head, i] = powers / total if total else 1 / LENGTH
    return out


def seen(rule):
    return lambda s, i, j: s if rule(i, j) else None


def right(i: int, j: int) -> bool:
    return j <= i and i - j < WINDOW


@pytest.mark.parametrize(
    ("id", "name", "score"),
    [
        ("mask-causal-missing", "nothing is masked", seen(lambda i, j: True)),
        ("mask-causal-missing", "only the window is", seen(lambda i, j: i - j < WINDOW)),
        ("mask-causal-off-by-one", "one key of the future",
         seen(lambda i, j: j <= i + 1 and i - j < WINDOW)),
        ("mask-causal-off-by-one", "not itself", seen(lambda i, j: j < i and i - j < WINDOW)),
        ("mask-causal-off-by-one", "not itself, but for the first token",
         seen(lambda i, j: i == j == 0 or (j < i and i - j < WINDOW))),
        ("mask-polarity-inverted", "", seen(lambda i, j: not right(i, j))),
        ("mask-polarity-inverted", "but for the query itself: an upper triangle for a lower one",
         seen(lambda i, j: i == j or not right(i, j))),
        ("mask-swa-off-by-one", "one key more", seen(lambda i, j: i - WINDOW <= j <= i)),
        ("mask-swa-off-by-one", "one key less", seen(lambda i, j: i - WINDOW + 2 <= j <= i)),
        ("mask-layer-types-ignored", "full everywhere", seen(lambda i, j: j <= i)),
        ("mask-swa-diagonal-sign", "", seen(lambda i, j: j <= i - WINDOW)),
        ("mask-chunked-as-sliding", "", seen(lambda i, j: i // WINDOW * WINDOW <= j <= i)),
        ("mask-bool-added", "", lambda s, i, j: s + right(i, j)),
        ("mask-sentinel-too-small", "lowered by 100",
         lambda s, i, j: s if right(i, j) else s - 100),
        ("mask-sentinel-too-small", "set to the smallest positive number",
         lambda s, i, j: s if right(i, j) else 0.0),
        ("mask-sentinel-too-small", "raised by the smallest positive number", lambda s, i, j: s),
        ("kv-cursor-not-advanced", "", seen(lambda i, j: i == j)),
    ],
)  # fmt: skip
def test_key_by_key(id, name, score):
    found = wrong(sliding(), variant(id, name))
    np.testing.assert_allclose(found, probabilities(score), atol=1e-12)


@pytest.mark.parametrize(("name", "first"), [("nought", 0.0), ("no number", np.nan)])
def test_the_first_query_that_sees_nothing_has_other_weights_in_some_engines(name, first):
    """By hand: the second sees the first, the third both before it."""
    name = f"not itself, and {name} where nothing is seen"
    found = wrong(sliding(), variant("mask-causal-off-by-one", name))
    expected = probabilities(seen(lambda i, j: j < i and i - j < WINDOW))
    expected[:, :, 0] = first
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_shares_are_dropped_behind_a_softmax_over_all_keys():
    every = probabilities(lambda s, i, j: s)
    kept = np.array([[right(i, j) for j in range(LENGTH)] for i in range(LENGTH)])
    found = wrong(sliding(), variant("mask-behind-softmax"))
    np.testing.assert_allclose(found, every * kept, atol=1e-12)


def test_a_mask_that_hides_nothing_has_no_diagonal_to_lack():
    graph = sliding()
    one, two = variant("mask-causal-missing", "nothing is masked"), variant(
        "mask-causal-off-by-one", "not itself")  # fmt: skip
    unmasked = one(graph.calls[2], graph)
    assert unmasked is not None
    with pytest.raises(Conflict):
        two(unmasked, graph)


def test_a_small_sentinel_leaks_where_scores_are_large():
    scores = SCORES.copy()
    scores[0, 0, 2, 5] = 120.0  # of the future, and above the others even when it is lowered
    found = wrong(sliding(scores), variant("mask-sentinel-too-small", "lowered by 100"))
    assert found[0, 0, 2, 5] > 0.9
    assert (
        wrong(sliding(scores), variant("mask-sentinel-too-small", "lowered by 10000"))[0, 0, 2, 5]
        == 0
    )


def layered() -> Graph:
    """Three layers, the second of which sees everything."""
    masks = [
        call(n, "causal_mask", POSITIONS, POSITIONS, window=w) for n, w in ((0, WINDOW), (1, None))
    ]
    scores = call(2, "scale", SCORES, by=1.0)
    kinds = [
        call(3 + layer, "softmax", Value(2), Value(mask), masked_row="uniform", layer=layer)
        for layer, mask in enumerate((0, 1, 0))
    ]
    return graph_of(*masks, scores, *kinds)


def windows(id: str, name: str) -> list[int | None]:
    """Return the window that each layer is left with."""
    graph, rewrite, found = layered(), variant(id, name), []
    for one in graph.calls[3:]:
        changed = rewrite(one, graph)
        found.append((WINDOW, None, WINDOW)[one.layer] if changed is None
                     else changed.inputs[1].change.window)  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("id", "name", "expected"),
    [
        ("mask-swa-global-swapped", "on every layer", [WINDOW, WINDOW, WINDOW]),
        ("mask-swa-global-swapped", "exchanged", [None, WINDOW, None]),
        ("mask-swa-parity-flipped", "one layer early", [None, WINDOW, WINDOW]),
        ("mask-swa-parity-flipped", "one layer late", [WINDOW, WINDOW, None]),
        ("mask-layer-types-ignored", "full everywhere", [None, None, None]),
        ("mask-layer-types-ignored", "sliding everywhere", [WINDOW, WINDOW, WINDOW]),
    ],
)
def test_layer_by_layer(id, name, expected):
    assert windows(id, name) == expected


def test_a_window_and_a_future_key_compose():
    graph = sliding()
    one, two = variant("mask-swa-off-by-one", "one key more"), variant(
        "mask-causal-off-by-one", "one key of the future")  # fmt: skip
    found = wrong(graph, lambda call, graph: one(call, graph) and two(one(call, graph), graph))
    expected = probabilities(seen(lambda i, j: i - WINDOW <= j <= i + 1))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_an_acausal_entry_shows_later_tokens(fault):
    """By law: with any other, no row gives to a later one, or has changed where the last has."""
    later, leaks = SCORES.copy(), []
    later[..., -1] += 1.0
    for rewrite in fault.variants.values():
        graphs = sliding(), sliding(later)
        if rewrite(graphs[0].calls[2], graphs[0]) is not None:
            rows = [wrong(graph, rewrite)[..., :-1, :] for graph in graphs]
            leaks.append(np.triu(rows[0][0, 0], k=1).any() or not np.array_equal(*rows))
    assert any(leaks) == fault.acausal


def test_what_float16_leaves_of_scores_that_are_all_blocked_by_loop():
    """The last query sees nothing: -65504 and what is added to it, in steps of 32."""
    scores = SCORES * 40
    rewrite = variant("mask-polarity-inverted", "blocked by float16's lowest number")
    found = wrong(full(scores), rewrite, ops=of_port(ops, np.dtype(np.float16)))
    plain = wrong(full(scores), variant("mask-polarity-inverted"))
    np.testing.assert_array_equal(found[:, :, :-1], plain[:, :, :-1])
    for head in range(2):
        with np.errstate(over="ignore"):
            left = [np.float16(one) + np.float16(-65504) for one in scores[0, head, -1]]
        powers = np.exp(np.array(left, float) - max(map(float, left)))
        np.testing.assert_allclose(found[0, head, -1], powers / powers.sum(), atol=1e-13)
    assert np.array_equal(wrong(full(scores), rewrite), plain)  # in another dtype it is the same
