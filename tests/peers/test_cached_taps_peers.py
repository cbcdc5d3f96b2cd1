"""Captures of transformers with what its caches hold: right ones are clean, and bugs are named.

By witness, live: a bug is put into the tensors of `DynamicCache` between two passes, so that the
next one reads what it finds there. Of attention the dump has nothing else than the cache.
"""

import pytest
import torch
from transformers import DynamicCache

from lockstep import parity, reference
from lockstep.parity.explain import explain
from tests.proof import builds, ports
from tests.witnesses import build

BUILDS = ("mistral", "gpt2", "qwen3_moe_raw", "gemma4_e2b", "qwen2_window")
LENGTHS = (20, 1, 1)
HIDDEN = ("attn", "attention")  # parts of names that a port without attention's taps has not


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    build.settle()
    root, done = tmp_path_factory.mktemp("builds"), {}

    def make(name):
        if name not in done:
            done[name] = builds.make(name, root / name, seed=0)
        return done[name]

    return make


@torch.no_grad()
def decode(folder, between=None, *, windows=False, alone=False, seed=1, **options):
    """Feed a text in passes; `between(cache)` changes what the cache holds after each of them."""
    port = ports.load(folder, **options)
    tokens, stop = builds.tokens(seed, folder, length=sum(LENGTHS))[0].tolist(), 0
    cache = DynamicCache(config=port.config) if windows else DynamicCache()
    with parity.capture.torch(port.outer, caches=True) as dump:
        for length in LENGTHS:
            places = range(stop, stop + length)
            ids, at = torch.tensor([[tokens[one] for one in places]]), torch.tensor([[*places]])
            port.outer(ids, past_key_values=cache, use_cache=True, position_ids=at)
            stop += length
            if between is not None:
                between(cache)
    for name in [one for one in dump.shapes if alone and "cached" not in one]:
        if any(part in name for part in HIDDEN):
            del dump.shapes[name]
    return dump


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("name", BUILDS)
def test_right_caches_raise_no_alarm(made, name, windows, dtype):
    for alone in (False, True):
        dump = decode(made(name), windows=windows, alone=alone, dtype=dtype)
        count = len({one.partition("/")[2] or one for one in dump.shapes if "cached" in one})
        found = explain(reference.load(made(name)), dump)
        assert (found.verdict, found.unexplained) == ("clean", [])
        assert not [name for name in found.unmatched if "cached" in name]
        assert count >= 4 and found.compared > count


def each(change):
    """Change keys and values of every layer."""

    def between(cache):
        for layer in cache.layers:
            layer.keys, layer.values = change(layer.keys), change(layer.values)

    return between


def lost(cache):
    """Overwrite the last token of the prompt, once."""
    for layer in cache.layers:
        if not hasattr(layer, "lost"):
            layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
            layer.lost = True


def of_the_first(cache):
    first = cache.layers[0]
    for layer in cache.layers[1:]:
        layer.keys, layer.values = first.keys, first.values


def in_8_bits(x):
    step = x.abs().amax(dim=-1, keepdim=True) / 127
    return (x / step).round() * step


PLANTED = {
    "kv-never-stored": each(lambda x: x[:, :, :0]),
    "kv-cursor-not-advanced": lost,
    "kv-of-other-layer": of_the_first,
    "kv-int8-noise": each(in_8_bits),
}


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.parametrize("alone", [False, True])
def test_a_cache_that_holds_something_else_is_named(made, bug, alone):
    found = explain(reference.load(made("qwen3")), decode(made("qwen3"), PLANTED[bug], alone=alone))
    (one,) = found.faults
    assert one.id == bug and not found.unexplained
    assert any("cached" in tap for tap in one.taps)


def test_a_cache_that_was_not_emptied_is_named(made):
    """By law: five random slots before the prompt's, as another text leaves them."""
    port = ports.load(made("qwen3"))
    tokens = builds.tokens(1, made("qwen3"), length=12)
    cache, drawn = DynamicCache(), torch.Generator().manual_seed(0)
    config = port.config
    shape = 1, config.num_key_value_heads, 5, config.head_dim
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(shape, generator=drawn) for _ in range(2)), layer)
    with parity.capture.torch(port.outer, caches=True) as dump, torch.no_grad():
        at = torch.arange(12)[None]
        port.outer(torch.tensor(tokens), past_key_values=cache, use_cache=True, position_ids=at)
    found = explain(reference.load(made("qwen3")), dump)
    (one,) = (one for one in found.faults if one.id == "kv-not-reset-between-prompts")
    assert one.variant == "slots of an earlier text" and len(one.layers) == config.num_hidden_layers
