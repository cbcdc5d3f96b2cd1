"""Caches gone wrong: token by token as loops say, and on small models. By loop."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.faults.found_again import ROUNDED, hadamard
from lockstep.parity.faults.kv_cache import FAULTS
from lockstep.parity.graph import Value
from lockstep.reference import ops
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

NAMES = (
    "llama/llama_dynamic", "gemma4/sparse", "models/untied_float32, decoded",
    "llama/mistral_window, decoded", "gemma4/effective, decoded", "gemma4/sparse, decoded",
)  # fmt: skip
NARROW = "no head of a tiny model is that wide"
HIDDEN = {
    f"kv-int8-noise[{name}]": NARROW
    for name in ("8 bits in blocks of 32", "8 bits in groups of 64", "4 bits in groups of 64")
} | {
    "kv-ring-sliced-as-flat[a chunk takes the slots as they lie for the last tokens]": (
        "steps here are of one token"
    ),
    "kv-ring-overwritten": "steps here are of one token",
    "kv-never-stored[in chunks of several tokens]": "steps here are of one token",
    "kv-chunk-cache-trims-buffer[a ring read to its end before it is full]": (
        "prompts here are longer than windows"
    ),
}  # fmt: skip
PROMPT, LENGTH, WINDOW, WIDTH, GROUPS, HEADS = 6, 10, 4, 4, 2, 4
STEPS = tuple(range(PROMPT, LENGTH))
DRAWN = np.random.default_rng(11)
QUERIES = DRAWN.standard_normal((1, HEADS, LENGTH, WIDTH))
KEYS, VALUES = DRAWN.standard_normal((2, 1, GROUPS, LENGTH, WIDTH))
AT, BY = np.arange(LENGTH)[None], np.array([0.7, 0.2])


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


def attending(window=WINDOW, steps=STEPS):
    """Keys that are turned, and queries that attend to them."""
    return graph_of(
        *(call(n, "scale", x, by=1.0) for n, x in enumerate((QUERIES, KEYS, VALUES))),
        call(3, "rope", Value(1), AT, BY, factor=1.0),
        call(4, "causal_mask", AT, AT, window=window),
        call(5, "attention_scores", Value(0), Value(3), scale=0.5, layer=0),
        call(6, "softmax", Value(5), Value(4), masked_row="uniform", layer=0),
        call(7, "attention_context", Value(6), Value(2), Value(4), layer=0),
        steps=steps,
    )


def turned(key, position):
    """Turn the two pairs of a head of four numbers."""
    c, s = np.cos(position * BY), np.sin(position * BY)
    a, b = key[:2], key[2:]
    return np.concatenate([a * c - b * s, b * c + a * s])


def attended(held, keys=None, values=None, window=WINDOW, of_head=None):
    """Average what each token sees, in loops. `held(token)` lists what a step's token sees, -1 for
    an empty slot; `keys(head, j, token)` and `values` are what it finds there."""
    keys = keys or (lambda group, j, token: turned(KEYS[0, group, j], j))
    values = values or (lambda group, j, token: VALUES[0, group, j])
    out = np.zeros((1, HEADS, LENGTH, WIDTH))
    for head in range(HEADS):
        group = head // (HEADS // GROUPS)
        for token in range(LENGTH):
            right = range(max(token - (window or LENGTH) + 1, 0), token + 1)
            powers, sums = 0.0, np.zeros(WIDTH)
            for j in right if token < PROMPT else held(token):
                later = token >= PROMPT and j < token
                key = np.zeros(WIDTH) if j < 0 else turned(KEYS[0, group, j], j)
                value = np.zeros(WIDTH) if j < 0 else VALUES[0, group, j]
                if later and j >= 0:
                    key, value = keys(group, j, token), values(group, j, token)
                power = np.exp(0.5 * QUERIES[0, head, token] @ key)
                powers, sums = powers + power, sums + power * value
            out[0, head, token] = sums / powers
    return out


def right(token, window=WINDOW):
    return list(range(max(token - window + 1, 0), token + 1))


def buffer(token, slots, place):
    """What a ring of WINDOW slots holds when a token has been written."""
    slots = list(slots)
    for one in range(PROMPT, token + 1):
        slots[place(one)] = one
    return slots


HELD = [
    ("kv-cursor-not-advanced", "the prompt in one slot, the rest of its slots empty",
     lambda t: [5, -1, -1, -1, -1, -1, *range(6, t + 1)]),
    ("kv-cursor-not-advanced", "the prompt in one slot, later tokens behind it",
     lambda t: [5, *range(6, t + 1)]),
    ("kv-cursor-not-advanced", "later tokens in one slot",
     lambda t: [j for j in right(t) if j < 6] + [t]),
    ("kv-cursor-not-advanced", "later tokens in the prompt's last slot",
     lambda t: [j for j in right(t) if j < 5] + [t]),
    ("kv-cursor-not-advanced", "one slot too early", lambda t: [j for j in right(t) if j != 5]),
    ("kv-cursor-not-advanced", "one slot too late, the slot between being empty",
     lambda t: [*right(t), -1]),
    ("kv-cursor-not-advanced", "one slot too late, and read to where it should be",
     lambda t: [*right(t)[:-1], -1]),
    ("kv-cursor-not-advanced", "one slot too early, and read to an empty one",
     lambda t: [*(j for j in right(t) if j != 5), -1]),
    ("kv-never-stored", "", lambda t: [t]),
    ("kv-read-before-write", "", lambda t: right(t)[:-1]),
    ("kv-ring-size-off-by-one", "one key less", lambda t: right(t, 3)),
    ("kv-ring-size-off-by-one", "one key more", lambda t: right(t, 5)),
    ("kv-ring-size-off-by-one", "full, it is written at its end again and again",
     lambda t: [2, 3, 4, t]),
    ("kv-ring-sliced-as-flat", "the prompt's last W in order, later tokens by p mod W",
     lambda t: buffer(t, [2, 3, 4, 5], lambda one: one % 4)),
    ("kv-ring-sliced-as-flat", "the prompt's first W are kept",
     lambda t: buffer(t, [0, 1, 2, 3], lambda one: one % 4)),
    ("kv-ring-sliced-as-flat", "the prompt by p mod W, later tokens from slot 0 on",
     lambda t: buffer(t, [4, 5, 2, 3], lambda one: (one - 6) % 4)),
    ("kv-chunk-cache-trims-buffer", "read to its end, a buffer of 256 slots",
     lambda t: right(t) + [-1] * (255 - t)),
    ("kv-chunk-cache-trims-buffer", "trimmed by it, a buffer of 256 slots", lambda t: [t]),
    ("mask-top-left-aligned", "", lambda t: [0]),
    ("mask-top-left-aligned", "by positions that stand at 0", lambda t: [0, *range(6, t + 1)]),
    ("mask-top-left-aligned", "by positions from 0 again",
     lambda t: [*range(t - 5), *range(6, t + 1)]),
    ("mask-swa-missing-in-decode", "", lambda t: range(t + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("id", "name", "held"), HELD)
def test_what_a_step_sees(id, name, held):
    found = wrong(attending(), variant(id, name))
    np.testing.assert_allclose(found, attended(held), atol=1e-12)


@pytest.mark.parametrize(("id", "name", "held"), [
    ("mask-top-left-aligned", "in chunks of several tokens", lambda t: range(t - 5)),
    # The chunk is four tokens long, as the ring is: it holds no other.
    ("kv-ring-overwritten", "", lambda t: range(6, t + 1)),
    ("kv-never-stored", "in chunks of several tokens", lambda t: range(6, t + 1)),
    ("mask-swa-missing-in-decode", "counted from the first token of a chunk",
     lambda t: range(3, t + 1)),
    ("mask-causal-missing", "in all these, and no window", lambda t: range(LENGTH)),
])  # fmt: skip
def test_what_a_chunk_sees(id, name, held):
    found = wrong(attending(steps=(PROMPT,)), variant(id, name))
    np.testing.assert_allclose(found, attended(held), atol=1e-12)
    assert all(variant(id, name)(one, attending()) is None for one in attending().calls)


def test_a_ring_that_is_not_full_may_be_read_to_its_end():
    """Of nine slots six are the prompt's: a step sees three, two, one or no empty ones."""
    name = "a ring read to its end before it is full"
    found = wrong(attending(window=9), variant("kv-chunk-cache-trims-buffer", name))
    held = attended(lambda t: [*right(t, 9), *[-1] * max(8 - t, 0)], window=9)
    np.testing.assert_allclose(found, held, atol=1e-12)


def test_keys_and_values_are_exchanged_in_steps():
    """By loop over tokens: values for keys, and turned keys for values."""
    graph = attending(window=None)
    graph = replace(graph, token_axes=((2,),) * len(graph.calls))
    scores = np.einsum("bhld,bhsd->bhls", QUERIES, np.repeat(VALUES, HEADS // GROUPS, axis=1))
    keys = [[turned(KEYS[0, g, j], j) for j in range(LENGTH)] for g in range(GROUPS)]
    theirs = np.repeat(np.array(keys)[None], HEADS // GROUPS, axis=1)
    found = wrong(graph, variant("kv-exchanged", "a step's own too"))
    for token in STEPS:
        powers = np.exp(0.5 * scores[0, :, token, : token + 1])
        powers /= powers.sum(axis=-1, keepdims=True)
        expected = np.einsum("hs,hsd->hd", powers, theirs[0, :, : token + 1])
        np.testing.assert_allclose(found[0, :, token], expected, atol=1e-12)


def test_a_chunk_without_a_mask_sees_all_of_itself():
    """Four tokens behind the prompt are fed at once; one by one there is nothing to see."""
    bug = variant("mask-causal-missing", "in all chunks of a prompt but the first")
    found = wrong(attending(steps=(PROMPT,)), bug)
    expected = attended(lambda t: sorted({*right(t), *range(PROMPT, LENGTH)}))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert all(bug(one, attending()) is None for one in attending().calls)


def test_positions_may_begin_anew_in_each_chunk():
    """A chunk of three tokens and a step; of single steps nothing is said."""
    for name, chunk, last in (
        ("from 0 in each chunk", [0, 1, 2], LENGTH - 1),
        ("from 0 in each chunk and step", [0, 1, 2], 0),
        ("at the first of each chunk", [PROMPT] * 3, LENGTH - 1),
        ("one too late", [PROMPT + 1, PROMPT + 2, PROMPT + 3], LENGTH),
    ):
        found = moved("rope-pos-frozen-on-decode", name, steps=(PROMPT, LENGTH - 1))
        assert found == [*PROMPTS, *chunk, last]
        assert moved("rope-pos-frozen-on-decode", name) is None


def test_without_a_bug_the_loop_is_attention():
    graph = attending()
    found = wrong(graph, lambda call, graph: call if call.op == "softmax" else None)
    np.testing.assert_allclose(found, attended(right), atol=1e-12)


def test_the_first_four_are_kept_in_a_ring_that_has_room_for_more():
    graph = attending(window=6)
    found = wrong(graph, variant("kv-ring-size-off-by-one", "the first 4 tokens are kept"))
    held = attended(lambda t: [0, 1, 2, 3, t - 1, t], window=6)
    np.testing.assert_allclose(found, held, atol=1e-12)


FOUND = [
    ("kv-cached-before-rope", "", {"keys": lambda g, j, t: KEYS[0, g, j]}),
    ("rope-on-cached-keys-again", "once more",
     {"keys": lambda g, j, t: turned(KEYS[0, g, j], 2 * j)}),
    ("rope-on-cached-keys-again", "in every step anew",
     {"keys": lambda g, j, t: turned(KEYS[0, g, j], j * (1 + t - max(j, PROMPT - 1)))}),
    ("rope-on-cached-keys-again", "by the step's own position",
     {"keys": lambda g, j, t: turned(KEYS[0, g, j], j + t)}),
    ("rope-on-cached-keys-again", "by the step's own position, and kept so",
     {"keys": lambda g, j, t: turned(KEYS[0, g, j], j + sum(range(max(j + 1, PROMPT), t + 1)))}),
    ("kv-exchanged", "",
     {"keys": lambda g, j, t: VALUES[0, g, j],
      "values": lambda g, j, t: turned(KEYS[0, g, j], j)}),
    ("kv-exchanged", "values for both", {"keys": lambda g, j, t: VALUES[0, g, j]}),
    ("kv-quant-basis-mismatch", "values", {"values": lambda g, j, t: mixed(VALUES[0, g, j])}),
    ("kv-quant-basis-mismatch", "keys",
     {"keys": lambda g, j, t: mixed(turned(KEYS[0, g, j], j))}),
    ("kv-int8-noise", "float16",
     {"keys": lambda g, j, t: turned(KEYS[0, g, j], j).astype(np.float16).astype(float),
      "values": lambda g, j, t: VALUES[0, g, j].astype(np.float16).astype(float)}),
    ("kv-int8-noise", "8 bits, a scale for each head of a token",
     {"keys": lambda g, j, t: in_steps(turned(KEYS[0, g, j], j)),
      "values": lambda g, j, t: in_steps(VALUES[0, g, j])}),
    ("kv-int8-noise", "8 bits of float8_e4m3",
     {"keys": lambda g, j, t: of_so_many_bits(turned(KEYS[0, g, j], j), 4, -6),
      "values": lambda g, j, t: of_so_many_bits(VALUES[0, g, j], 4, -6)}),
    ("kv-int8-noise", "8 bits of float8_e5m2",
     {"keys": lambda g, j, t: of_so_many_bits(turned(KEYS[0, g, j], j), 3, -14),
      "values": lambda g, j, t: of_so_many_bits(VALUES[0, g, j], 3, -14)}),
]  # fmt: skip


def of_so_many_bits(x, bits, least):
    """By hand: so many bits from the first one on, which stands for 2^least or more."""
    size = np.maximum(np.floor(np.log2(np.abs(x))), least)
    step = 2.0 ** (size - bits + 1)
    return np.round(x / step) * step


def mixed(x):
    """By hand: Walsh's matrix of four rows, over 2."""
    a, b, c, d = x
    return np.array([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d]) / 2


def in_steps(x):
    step = np.abs(x).max() / 127
    return np.round(x / step) * step


@pytest.mark.parametrize(("id", "name", "found"), FOUND)
def test_what_a_step_finds_in_the_cache(id, name, found):
    got = wrong(attending(), variant(id, name))
    np.testing.assert_allclose(got, attended(right, **found), atol=1e-6)


def test_a_cache_of_query_heads():
    """Four query heads, two key heads: heads 2 and 3 of the cache were never written."""
    name = "query heads read their own number, and zeros beyond"
    got = wrong(attending(), variant("kv-head-count-in-cache", name))
    out = attended(right)
    for head in range(HEADS):
        for token in STEPS:
            powers, sums = 0.0, np.zeros(WIDTH)
            for j in right(token):
                empty = head >= GROUPS
                key = np.zeros(WIDTH) if empty else turned(KEYS[0, head, j], j)
                power = np.exp(0.5 * QUERIES[0, head, token] @ key)
                powers += power
                sums = sums + power * (0 if empty else VALUES[0, head, j])
            out[0, head, token] = sums / powers
    np.testing.assert_allclose(got, out, atol=1e-12)


def test_without_steps_there_is_no_cache_to_be_wrong():
    """By law: nothing but what a prefill shows changes a graph of a prefill."""
    graph = attending(steps=())
    for fault in FAULTS:
        for name, rewrite in fault.variants.items():
            changed = any(rewrite(one, graph) is not None for one in graph.calls)
            in_prefill = fault.id in ("kv-cursor-not-advanced", "kv-offset-aliased") and not name
            assert changed <= in_prefill, (fault.id, name)


@pytest.mark.parametrize("layer", ["the first layer", "the layer before"])
def test_keys_or_values_alone_may_be_another_layer_s(layer):
    """By law: both together are the one and the other."""
    graph = world("llama/mistral_window, decoded")
    both, keys, values = (
        graph.calls(variant("kv-of-other-layer", f"{layer}{part}"))
        for part in ("", ", keys alone", ", values alone")
    )
    assert {one.op for one in keys.values()} == {"attention_scores"}
    assert {one.op for one in values.values()} == {"attention_context"}
    assert both.keys() == keys.keys() | values.keys()


def test_walshs_matrix_is_its_own_inverse():
    for size in (1, 2, 16, 64):
        np.testing.assert_allclose(hadamard(size) @ hadamard(size), np.eye(size), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "levels", "group"),
    [
        ("8 bits in blocks of 32", 255, 32),
        ("8 bits in groups of 64", 256, 64),
        ("4 bits in groups of 64", 16, 64),
    ],
)
def test_values_that_are_packed_are_on_a_grid(name, levels, group):
    """By law: each group has so many levels at most, and is nowhere a step off."""
    x = DRAWN.standard_normal((1, 1, LENGTH, 64))
    got = rounded_in_the_cache_of(name, x)
    for row, right_row in zip(got.reshape(-1, group), x.reshape(-1, group), strict=True):
        step = 2 * np.abs(right_row).max() / (levels - 1)
        assert len(np.unique(row)) <= levels and 0 < np.abs(row - right_row).max() < step


def rounded_in_the_cache_of(name, x):
    kinds = {"8 bits in blocks of 32": "q8_0", "8 bits in groups of 64": "affine 8"}
    return ROUNDED[kinds.get(name, "affine 4")](ops, x)


def moved(id, name, *, positions=AT, steps=STEPS, place="self_attn.q_rope", window=None):
    """Return the positions that a rope is given."""
    graph = graph_of(
        call(0, "causal_mask", positions, positions, window=window),
        call(1, "softmax", np.zeros((1, 1, LENGTH, LENGTH)), Value(0), masked_row="uniform"),
        call(2, "rope", KEYS, positions, BY, factor=1.0, place=place),
        steps=steps,
    )
    new = variant(id, name)(graph.calls[2], graph)
    if new is None:
        return None
    ref = new.inputs[1]
    return ref.change(SimpleNamespace(), positions)[0].tolist()


PROMPTS = list(range(PROMPT))


@pytest.mark.parametrize(
    ("id", "name", "later"),
    [
        ("rope-pos-frozen-on-decode", "at 0", [0, 0, 0, 0]),
        ("rope-pos-frozen-on-decode", "from 0 again", [0, 1, 2, 3]),
        ("rope-pos-frozen-on-decode", "from 1 again", [1, 2, 3, 4]),
        ("rope-pos-frozen-on-decode", "at the prompt's length", [6, 6, 6, 6]),
        ("rope-pos-frozen-on-decode", "at the prompt's last token", [5, 5, 5, 5]),
        ("rope-pos-frozen-on-decode", "one too early", [5, 6, 7, 8]),
        ("rope-pos-double-advance", "", [12, 14, 16, 18]),
        ("rope-pos-double-advance", "two for each token", [6, 8, 10, 12]),
        ("kv-offset-aliased", "in steps alone", [7, 8, 9, 10]),
        ("kv-offset-aliased", "in steps alone, keys too", [7, 8, 9, 10]),
    ],
)
def test_where_a_step_thinks_it_is(id, name, later):
    """By hand: a prompt of six tokens, then four steps."""
    assert moved(id, name) == PROMPTS + later


def test_positions_that_count_what_a_ring_retained():
    """By hand: a ring of seven keeps positions from 7 on, or from 6 on."""
    id = "kv-position-from-retained-count"
    assert moved(id, "as many as the window", window=7) == [*range(8), 7, 7]
    assert moved(id, "one less than the window", window=7) == [*range(7), 6, 6, 6]
    assert moved(id, "as many as the window") is None


def test_an_offset_read_behind_the_update_is_late_by_what_was_put_in():
    """By hand: six tokens, then three in one pass, then one."""
    found = moved("kv-offset-aliased", "", steps=(6, 9))
    assert found == [6, 7, 8, 9, 10, 11, 9, 10, 11, 10]
    assert moved("rope-pos-double-advance", "", steps=(6, 9)) == [*PROMPTS, 12, 13, 14, 18]
