"""Layers for one token in one go, and what caches make of it: others', breaks, batches that shrink.

By law: whatever is not as usual is refused, or gives the bits that it gives by operations.
"""

import gc
from weakref import ref

import pytest

from lockstep.fast.decoding import autoregressive, continuous
from lockstep.fast.decoding.sampling import greedy
from lockstep.fast.kernels import layers
from lockstep.fast.model import load
from lockstep.parity.resuming.going_on import CacheLater
from lockstep.reference.parallel.cache import EachCache
from lockstep.reference.scheduling.in_flight import Prompt
from tests.fast.kernels import test_layers as usual
from tests.tolerances import assert_same_bits

many, qwen3 = usual.many, usual.qwen3
PROMPT = [[3, 1, 4]]


class Broken(Exception):
    pass


def broken(*given):
    raise Broken


def begun(model):
    """Return a cache that holds a prompt."""
    cache = model.make_cache()
    model.forward(PROMPT, cache=cache)
    return cache


@pytest.mark.parametrize("slots", [1, 3])
def test_texts_in_flight_of_which_one_is_left(qwen3, slots, many):
    """By law: each is the text that it is alone, though the last one goes token by token."""
    model, ends = load(qwen3, backend="cpu"), (3, 9, 5)
    alone = [
        list(autoregressive.generate(model, [number, 7], max_tokens=end, stop=(), choose=greedy))
        for number, end in enumerate(ends)
    ]
    many.clear()
    prompts = [Prompt([number, 7], end, (), greedy) for number, end in enumerate(ends)]
    texts = [[] for _ in ends]
    for one in continuous.generate(model, prompts, slots=slots):
        texts[one.text].append(one.token)
    assert texts == alone and set(many) == {0}


@pytest.mark.parametrize("wrap", [lambda cache: EachCache([cache]),
                                  lambda cache: CacheLater(cache, None, None)])  # fmt: skip
def test_a_cache_without_buffers_of_its_own_has_no_room_to_give(qwen3, wrap):
    """By hand: None, and nothing is made."""
    cache = load(qwen3, backend="cpu").make_cache()
    assert wrap(cache).reserve(None, 0, None, None) is None
    assert not cache.arrays()


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 1}, {"head_dim": 64}])
@pytest.mark.parametrize("tokens", [[[5]], [[5, 6]]])
def test_another_models_cache_is_refused(qwen3, tmp_path, changes, tokens):
    """By law: not a number of what it holds, or lies beside it, is another one then."""
    model, other = (
        load(path, backend="cpu")
        for path in (qwen3, usual.written(tmp_path, "qwen3", **changes))
    )  # fmt: skip
    cache = begun(other)
    before = [array.copy() for array in cache.arrays()]
    with pytest.raises(ValueError, match=r"new tokens of .* but the cache holds"):
        model.forward(tokens, cache=cache)
    usual.assert_alike(cache.arrays(), before)


@pytest.mark.parametrize("where", ["Held", "turns_at", "played"])
def test_a_token_that_was_broken_off_is_not_held(qwen3, where, monkeypatch):
    """By law: the next one is refused, and one in its place is right."""
    model = load(qwen3, backend="cpu")
    cache = begun(model)
    with monkeypatch.context() as other:
        other.setattr(layers, where, broken)
        with pytest.raises(Broken):
            model.forward([[5]], cache=cache)
    assert [store.held for store in (*cache.keys, *cache.values)] == [3] * 6
    with pytest.raises(ValueError, match="new tokens at 4, but the cache holds 3"):
        model.forward([[6]], cache=cache)
    cache.trim(2)
    truth = usual.heard(model, tokens=(5, 6))
    found = [model.forward([[token]], cache=cache) for token in (5, 6)]
    usual.assert_alike(found, truth[1:])


def test_stages_that_nobody_asks_for_are_not_held(qwen3, many, monkeypatch):
    """By law: as by operations, if a product has no digits; the layer before it is held."""
    model = load(qwen3, backend="cpu")
    name = "model.layers.1.post_attention_layernorm.weight"
    gain = model.weights[name].copy()
    gain[5] = 1e30
    monkeypatch.setitem(model.weights, name, gain)
    cache = begun(model)
    stages = model.stages([[5]], cache=cache)
    assert [name for name, _ in (next(stages), next(stages))][1] == "model.layers.0"
    stages.close()
    done = usual.UNTIL_LOST
    held = [store.held for store in cache.keys]
    assert many == [0, done] and held == [4] * done + [3] * (3 - done)
    if done == 3:
        return
    with pytest.raises(ValueError, match="new tokens at 4, but the cache holds 3"):
        model.forward([[6]], cache=cache)


def test_a_prompt_lets_go_of_the_buffers_that_it_outgrows(qwen3):
    """By law: nothing else keeps them; and the next token is right."""
    model = load(qwen3, backend="cpu")
    first, rest = [1] * 250, [2] * 40
    cache = model.make_cache()
    usual.steps(model, cache=cache, first=first, tokens=[5])
    old = [ref(store.buffer) for store in (*cache.keys, *cache.values)]
    model.forward([rest], cache=cache)
    gc.collect()
    assert not any(one() is not None for one in old)
    branch = cache.branch()
    truth = model.forward([[6]], cache=branch, trace=lambda name, value: None)
    assert_same_bits(model.forward([[6]], cache=cache), truth)
