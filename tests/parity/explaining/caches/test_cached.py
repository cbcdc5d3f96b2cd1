"""What caches hold: slots are found by their numbers, and what is wrong with them is named.

By law: the reference's own cache, its slots moved as a broken cache would have them. By hand: the
slots of small caches.
"""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.caches import slots as cached_slots
from lockstep.parity.explaining.caches.layouts import laid_out, layouts_of, repeated, unmixed
from lockstep.parity.explaining.caches.slots import (
    EMPTY,
    PAD,
    STRANGE,
    Content,
    contents,
    distances,
)
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.rounded_caches import BY_CHANNEL
from tests.parity.explaining.ports import WITNESSES, ids, model_of
from tests.sampled import sampled

FULL, RING, WINDOW = "models/untied_float32", "llama/mistral_window", 9
NAMES = (FULL, RING, "gpt2/variant", "gemma4/effective", "qwen3_moe/separate",
         "llama/llama_dynamic")  # fmt: skip
LEVELS = {
    "all": lambda tap: True,
    "layers": lambda tap: tap.count(".") == 2 or tap in ("logits", "lm_head"),
    "none": lambda tap: False,
}


def traced(name, lengths, change=lambda x, layer, begin, end, prompt: x, level="layers", port=None):
    """Return a decode of the reference with what its caches hold, changed by a bug."""
    model, taps, ends = port or model_of(name), {}, np.cumsum([0, *lengths]).tolist()
    cache, tokens = model.make_cache(), np.arange(3, 3 + ends[-1])[None] * 5 % 60
    path = "transformer.h.{}.attn" if "gpt2" in name else "model.layers.{}.self_attn"
    for step, (begin, end) in enumerate(pairwise(ends)):
        prefix, found = f"step.{step}/" if step else "", {}
        model.forward(tokens[:, begin:end], cache=cache, trace=found.__setitem__)
        for part, stores in (("keys", cache.keys), ("values", cache.values)):
            for layer, store in enumerate(stores):
                if store.arrays():
                    wrong = change(store.arrays()[0], layer, begin, end, lengths[0])
                    found[f"{path.format(layer)}.cached_{part}"] = wrong
        kept = (tap for tap in found if "cached" in tap or LEVELS[level](tap))
        taps |= {prefix + tap: found[tap] for tap in kept}
    said = tokens[0].tolist()
    about = {"tokens": json.dumps(said[: lengths[0]])}
    if len(lengths) > 1:
        about |= {"decoded": json.dumps(said[lengths[0] :]),
                  "step_lengths": json.dumps(lengths[1:])}  # fmt: skip
    return Dump(Path("port"), {n: x.shape for n, x in taps.items()}, taps.__getitem__, about)


def explained(name, lengths, *args, **options):
    return explain(model_of(name), traced(name, lengths, *args, **options))


@sampled(8, "gemma4/effective-all-lengths1")
@pytest.mark.parametrize("lengths", [[12], [12, 1, 1, 3]])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_right_caches_are_clean(name, level, lengths):
    found = explained(name, lengths, level=level)
    assert (found.verdict, found.unexplained, found.unmatched) == ("clean", [], [])
    assert found.compared >= 4


def holding(slots):
    """Keep other slots: `slots(begin, end, prompt)` are tokens, -1 one of zeros."""

    def change(x, layer, begin, end, prompt):
        wide = np.concatenate([x, np.zeros_like(x[:, :, :1])], axis=2)
        return wide[:, :, [*slots(begin, end, prompt)]]

    return change


def in_ring(first, place):
    def slots(begin, end, prompt):
        held = [*range(max(prompt - WINDOW, 0), prompt)] if not first else [*range(WINDOW)]
        for token in range(prompt, end):
            held[place(token)] = token
        return held

    return holding(slots)


def of_queries(tile):
    return lambda x, *rest: np.concatenate([x, x if tile else np.zeros_like(x)], axis=1)


def stale(x, layer, *rest):
    drawn = np.random.default_rng(layer).standard_normal((*x.shape[:2], 5, x.shape[3]))
    return np.concatenate([drawn.astype(x.dtype), x], axis=2)


def in_8_bits(x, *rest):
    step = np.abs(x).max(axis=-1, keepdims=True) / 127
    return (np.rint(x / step) * step).astype(x.dtype)


def keys_by_channel():
    """Round keys by channel, in passes of one token but the first; values by head."""
    met = set()

    def change(x, layer, begin, end, prompt):
        if (layer, begin) in met:  # keys of all layers come before their values
            met.remove((layer, begin))
            return in_8_bits(x)
        met.add((layer, begin))
        step = np.abs(x[:, :, :prompt]).max(axis=2, keepdims=True) / 127
        first = (np.rint(x[:, :, :prompt] / step) * step).astype(x.dtype)
        return np.concatenate([first, x[:, :, prompt:]], axis=2)

    return change


def of_the_first(held=None):
    held = {} if held is None else held

    def change(x, layer, *rest):  # keys of all layers come before their values
        held[layer] = x
        return held[0]

    return change


BUGS = {
    "kv-head-count-in-cache: query heads read their own number, and zeros beyond":
        of_queries(tile=False),
    "kv-head-count-in-cache: query heads read their number mod key heads": of_queries(tile=True),
    "kv-axes-mixed: None": lambda x, *rest: x.swapaxes(1, 2).reshape(x.shape),
    "kv-not-reset-between-prompts: slots of an earlier text": stale,
    "kv-never-stored: None": holding(lambda begin, end, prompt: range(begin, end)),
    "kv-cursor-not-advanced: one slot too early": holding(
        lambda begin, end, prompt: [x for x in range(end) if x != prompt - 1 or end == prompt]),
    # How far a cache is read does not show in what it holds.
    "kv-cursor-not-advanced: one slot too late, the slot between being empty or one slot too late, "
    "and read to where it should be": holding(
        lambda begin, end, prompt: [*range(prompt), *[-1] * (end > prompt), *range(prompt, end)]),
    "kv-cursor-not-advanced: the prompt in one slot, the rest of its slots empty": holding(
        lambda begin, end, prompt: [prompt - 1, *[-1] * (prompt - 1), *range(prompt, end)]),
    "kv-cursor-not-advanced: later tokens in one slot": holding(
        lambda begin, end, prompt: [*range(prompt), *[end - 1] * (end > prompt)]),
    "kv-of-other-layer: the first layer": of_the_first(),
    "kv-int8-noise: 8 bits, a scale for each head of a token": in_8_bits,
    f"kv-int8-noise: {BY_CHANNEL}": keys_by_channel(),
}  # fmt: skip
RINGS = {
    "kv-ring-sliced-as-flat: the prompt's last W in order, later tokens by p mod W":
        in_ring(False, lambda token: token % WINDOW),
    "kv-ring-sliced-as-flat: the prompt's first W are kept":
        in_ring(True, lambda token: token % WINDOW),
    "kv-ring-size-off-by-one: full, it is written at its end again and again":
        in_ring(False, lambda token: WINDOW - 1),
    "kv-ring-size-off-by-one: one key less":
        holding(lambda begin, end, prompt: range(end - WINDOW + 2, end)),
}  # fmt: skip


@sampled(5, "kv-cursor-not-advanced: later tokens in one slot-layers")
@pytest.mark.parametrize("level", ["layers", "none"])
@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_with_a_cache_is_named(bug, level):
    found = explained(FULL, [12, 1, 1, 1], BUGS[bug], level)
    assert [f"{one.id}: {one.variant}" for one in found.faults] == [bug]
    assert not found.unexplained and all("cached" in tap for tap in found.faults[0].taps)


@pytest.mark.parametrize("bug", RINGS)
def test_what_is_wrong_with_a_ring_is_named(bug):
    found = explained(RING, [20, 1, 1, 1], RINGS[bug])
    assert [f"{one.id}: {one.variant}" for one in found.faults] == [bug]
    assert not found.unexplained


RIGHT = {
    "caches hold each key head as often as queries read it":
        (FULL, lambda x, *rest: np.repeat(x, 2, axis=1)),
    "caches hold heads behind tokens, (B, S, H, D)": (FULL, lambda x, *rest: x.swapaxes(1, 2)),
    "caches of sliding layers hold tokens in the order of a ring":
        (RING, holding(lambda begin, end, prompt: np.roll(range(end - WINDOW, end), end))),
    "": (FULL, lambda x, *rest: np.concatenate([x, np.zeros_like(x)], axis=2)),
}  # fmt: skip


@pytest.mark.parametrize("told", RIGHT)
def test_another_layout_is_no_bug(told):
    name, change = RIGHT[told]
    found = explained(name, [20, 1, 1], change)
    assert (found.verdict, found.conventions) == ("clean", [told] * bool(told))


@sampled(7, "1-True-lengths6")
@pytest.mark.parametrize("lengths", [[1], [2], [4], [2, 1, 1], [1, 1, 1, 1], [4, 1], [5, 1]])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_layout_is_one_for_all_passes(lengths, swapped, times):
    """As many tokens as heads, of keys or of queries, tell nothing by themselves."""

    def change(x, *rest):
        x = np.repeat(x, times, axis=1)
        return x.swapaxes(1, 2) if swapped else x

    found = explained(FULL, lengths, change)
    told = ("caches hold each key head as often as queries read it",
            "caches hold heads behind tokens, (B, S, H, D)")  # fmt: skip
    right = [one for one, is_so in zip(told, (times > 1, swapped), strict=True) if is_so]
    assert (found.verdict, found.conventions) == ("clean", right)


def test_a_cache_without_slots_is_told():
    found = explained(FULL, [6, 1], lambda x, *rest: x[:, :, :0])
    assert found.unexplained[0].shape == "it has no slots"


@pytest.mark.parametrize("dtype", [np.int8, bool])
def test_a_cache_of_integers_is_told_by_its_dtype(dtype):
    found = explained(FULL, [6], lambda x, *rest: x.astype(dtype))
    said = f"dtype {np.dtype(dtype)}, but should be one of floating point"
    assert found.unexplained[0].shape == said


@pytest.mark.parametrize("bug", BUGS)
def test_only_bugs_that_are_looked_for_are_named(bug):
    dump = traced(FULL, [12, 1, 1, 1], BUGS[bug])
    some = [one for one in catalogue() if one.id != bug.partition(":")[0]][:3]
    found = explain(model_of(FULL), dump, faults=some)
    assert found.verdict == "unknown" and found.unexplained
    assert not ids(found) & {bug.partition(":")[0]}


def test_a_later_layers_cache_is_named():
    """By law: layer 0 holds what layer 1 keeps, which the catalogue has no word for."""
    dump = traced(FULL, [12, 1, 1])
    others = {name: name.replace("layers.0.", "layers.1.") if "cached" in name else name
              for name in dump.shapes}  # fmt: skip
    found = explain(
        model_of(FULL),
        Dump(Path("port"), dump.shapes, lambda name: dump.read(others[name]), dump.about),
    )
    assert [(one.id, one.variant, one.layers) for one in found.faults] == [
        ("kv-of-other-layer", None, [0])
    ]


def test_equal_tokens_are_one_as_good_as_the_other():
    """By law: values of a first layer know no place, so a text's equal tokens have the same."""
    model, said = model_of(RING), [7, 9, 7, 7, 9, 3] * 2 + [7, 9, 7]
    cache, taps = model.make_cache(), {}
    for step, (begin, end) in enumerate([(0, 12), (12, 13), (13, 14), (14, 15)]):
        model.forward(np.array([said[begin:end]]), cache=cache)
        for layer, store in enumerate(cache.values):
            path = f"model.layers.{layer}.self_attn.cached_values"
            taps[f"step.{step}/{path}"] = store.arrays()[0][:, :, -9:]
    about = {"tokens": json.dumps(said[:12]), "decoded": json.dumps(said[12:])}
    shapes = {name: x.shape for name, x in taps.items()}
    found = explain(model, Dump(Path("port"), shapes, taps.__getitem__, about))
    assert (found.verdict, found.unexplained) == ("clean", [])


def test_slots_are_compared_a_few_at_once(monkeypatch):
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 4))
    (whole,) = distances(x, x[:, :, :5])
    monkeypatch.setattr(cached_slots, "AT_ONCE", 30)
    parts = [*distances(x, x[:, :, :5])]
    assert [one.shape for one in parts] == [(2, 3, 5), (2, 3, 5), (2, 1, 5)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)


def test_a_bug_is_seen_at_the_first_wrong_step():
    change = BUGS["kv-cursor-not-advanced: later tokens in one slot"]
    found = explained(FULL, [12, 1, 1, 1], change)
    assert found.faults[0].where == "from step 2 on"
    assert all(tap.startswith("step.2/") for tap in found.faults[0].taps)


def test_keys_may_be_kept_before_their_turn():
    """By law: k_norm of the reference, put where its cached keys should be."""
    dump = traced(FULL, [12, 1, 1], level="all")
    taps = {name: dump.read(name) for name in dump.shapes if ".scores" not in name}
    for layer in range(2):
        parts = [f"model.layers.{layer}.self_attn.{part}" for part in ("k_norm", "cached_keys")]
        before = []
        for prefix in ("", "step.1/", "step.2/"):
            norm, cached = (prefix + part for part in parts)
            before.append(taps[norm].swapaxes(1, 2))
            taps[cached] = np.concatenate(before, axis=2)
    shapes = {name: x.shape for name, x in taps.items()}
    found = explain(model_of(FULL), Dump(Path("port"), shapes, taps.__getitem__, dump.about))
    assert (found.verdict, found.unexplained) == ("clean", [])
    assert "caches hold keys as they are before their turn" in found.conventions


def test_wrong_keys_are_judged_as_keys():
    """By law: a wrong base of the rope is no bug of the cache, which hands them on."""
    port = reference.load(WITNESSES / RING)
    port.config = port.checkpoint.config = replace(port.config, rope_theta=1e6)
    for lengths in ([12], [12, 1, 1]):
        found = explain(model_of(RING), traced(RING, lengths, port=port))
        assert ids(found) == {"rope-theta-default"} and not found.unexplained
        assert any("cached_keys" in tap for tap in found.faults[0].taps)


def test_what_no_one_knows_is_told_slot_by_slot():
    change = holding(lambda begin, end, prompt: [*range(0, end, 2), *range(1, end, 2)])
    found = explained(FULL, [6, 1], change)
    assert found.verdict == "unknown"
    assert found.unexplained[0].shape == "its slots hold tokens 0, 2, 4, 1, 3, 5"


def test_a_cache_of_other_widths_is_told():
    found = explained(FULL, [6], lambda x, *rest: x[..., :-1])
    assert found.verdict == "unknown"
    assert found.unexplained[0].shape.startswith("shape [1, 2, 6, ")


def test_layouts_by_hand():
    x = np.arange(2 * 3 * 4.0).reshape(1, 2, 3, 4)
    for other in (x, x[0], x.swapaxes(1, 2), x.swapaxes(1, 2).reshape(1, 3, 8)):
        (layout,) = layouts_of([other.shape], 1, (2, 6), 4)
        np.testing.assert_array_equal(laid_out(other, layout, 1, (2, 6), 4), x)
    one = x.reshape(2, 1, 3, 4)
    for other in (one, one[:, 0], one.swapaxes(1, 2)):
        (layout,) = layouts_of([other.shape], 2, (1,), 4)
        np.testing.assert_array_equal(laid_out(other, layout, 2, (1,), 4), one)
    assert not layouts_of([x.shape], 1, (5,), 4) and not layouts_of([x.shape], 2, (2,), 4)
    assert [*layouts_of([(1, 2, 2, 4)], 1, (2, 6), 4)] == [(0, False), (0, True)]
    assert layouts_of([(1, 2, 2, 4), (1, 3, 2, 4)], 1, (2, 6), 4) == [(0, True)]
    mixed = np.array([x[0, head, token] for token in range(3) for head in range(2)])
    np.testing.assert_array_equal(unmixed(mixed.reshape(1, 2, 3, 4)), x)
    assert repeated(np.repeat(x, 2, axis=1), 2) == "each"
    assert repeated(np.tile(x, (1, 2, 1, 1)), 2) == "again"
    assert repeated(np.concatenate([x, 0 * x], axis=1), 2) == "zeros"
    assert repeated(np.concatenate([x, x + 1], axis=1), 2) == ""


def test_slots_by_hand():
    """Tokens 1, 0, nothing, a stranger, and room; then a row whose first token is padding."""
    right = np.eye(4)[None, None, :3]
    found = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 5], [0, 0, 0, 0]])
    (far,) = distances(found[None, None].astype(float), right)
    zeros = ~found[None].any(axis=2)
    (content,) = contents([far], zeros, np.ones((1, 3), bool), 0.05)
    assert content.slots == (1, 0, EMPTY, STRANGE, EMPTY)
    assert (content.tokens, content.before, content.empty) == ([1, 0], (1, 0), 0)
    (content,) = contents([far], zeros, np.array([[False, True, True]]), 0.05)
    assert content.slots[:2] == (1, STRANGE)
    (content,) = contents([far[:, ::-1]], zeros[:, ::-1], np.array([[False, True, True]]), 0.05)
    assert content.slots[0] == PAD


@pytest.mark.parametrize(
    ("slots", "needed", "ordered", "right"),
    [
        ((0, 1, 2), range(3), True, True),
        ((0, 1, 2, STRANGE, EMPTY), range(3), True, True),
        ((2, 0, 1), range(3), True, False),
        ((2, 0, 1), range(3), False, True),
        ((0, 1), range(3), False, False),
        ((0, 1, 1, 2), range(3), False, False),
        ((STRANGE, 0, 1, 2), range(3), False, False),
        ((0, EMPTY, 1, 2), range(3), True, False),
        ((PAD, 0, 1, 2), range(3), True, True),
    ],
)
def test_what_a_cache_must_hold(slots, needed, ordered, right):
    assert Content(slots).is_right(needed, ordered=ordered) == right
