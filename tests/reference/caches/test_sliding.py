"""The cache whose sliding layers drop what they can no longer see: by loop, by hand, by law."""

import numpy as np
import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.kinds import layer_kinds
from tests.reference.caches.test_models_with_caches import FOLDERS, SIDES, drawn, host

SLIDING = ("mistral", "gemma4", "gemma4 experts")


@pytest.fixture(params=SIDES)
def side(request):
    return SIDES[request.param]


def windowed(model) -> tuple[int, list[bool]]:
    """Return the window, and which layers have it."""
    kinds = layer_kinds(model.config)
    return model.config.sliding_window, [kind == "sliding_attention" for kind in kinds]


def tokens_held(cache, layer: int) -> int:
    return cache.keys[layer].arrays()[0].shape[2]


@pytest.mark.parametrize("name", SLIDING)
def test_a_text_far_beyond_the_window(side, name):
    """By loop: each step against the whole text without a cache; sliding layers hold a window."""
    model = side(FOLDERS[name])
    window, sliding = windowed(model)
    length = min(2 * window + 9, model.config.max_position_embeddings)
    tokens = drawn(model, count=length)
    whole = host(model, model.forward(tokens))
    cache, found, start = model.make_cache("sliding"), [], 0
    for size in [window + 3, 4, *[1] * (length - window - 7)]:
        part = tokens[:, start : start + size]
        found.append(host(model, model.forward(part, cache=cache)))
        start += size
        most = size if start == size else window - 1 + size
        held = [tokens_held(cache, place) for place, one in enumerate(sliding) if one and
                cache.keys[place].arrays()]  # fmt: skip
        assert held and set(held) == {most}
    assert start == length
    assert np.abs(np.concatenate(found, axis=1) - whole).max() < 5e-5 * whole.std()


@pytest.mark.parametrize("name", SLIDING)
def test_rows_of_unequal_length_keep_what_the_shorter_one_needs(side, name):
    """By loop: each row alone, without padding."""
    model = side(FOLDERS[name])
    window, _ = windowed(model)
    tokens = drawn(model, rows=2, count=window + 4)
    lengths = np.array([window + 4, 3])
    cache = model.make_cache("sliding")
    model.forward(tokens, cache=cache, lengths=lengths)
    for more in (1, 2):
        step = host(model, model.forward(tokens[:, more - 1 : more], cache=cache))
        for row, length in enumerate(lengths):
            text = [*tokens[row, :length], *tokens[row, :more]]
            alone = host(model, model.forward([text]))[0, -1]
            assert np.abs(step[row, 0] - alone).max() < 5e-5 * alone.std()


def test_it_cannot_go_back_to_what_it_dropped(side):
    """By hand: a few tokens can be forgotten in the same step only where the window still holds."""
    model = side(FOLDERS["gemma4"])
    window, _ = windowed(model)
    tokens, cache = drawn(model, count=window + 6), model.make_cache("sliding")
    model.forward(tokens[:, :-1], cache=cache)
    model.forward(tokens[:, -1:], cache=cache)
    branch = cache.branch()
    with pytest.raises(InputError, match="is needed again, but layers with a window have dropped"):
        cache.trim(5)
    assert cache.positions.length == window + 6
    last = host(model, model.forward(tokens[:, :1], cache=branch))
    whole = host(model, model.forward([[*tokens[0], tokens[0, 0]]]))[:, -1:]
    assert np.abs(last - whole).max() < 5e-5 * whole.std()


def test_which_layers_slide():
    """By hand, from the configs: all of a windowed Mistral, some of Gemma 4, none of GPT-2."""
    models = {name: SIDES["reference"](FOLDERS[name]) for name in FOLDERS}
    slides = {name: {*layer_kinds(model.config)} for name, model in models.items()}
    assert slides["gpt2"] == slides["qwen3"] == {"full_attention"}
    assert slides["mistral"] == {"sliding_attention"}
    assert slides["gemma4"] == {"sliding_attention", "full_attention"}
    rings = {name: model.make_cache("sliding").positions.rings for name, model in models.items()}
    assert not rings["gpt2"] and not rings["qwen3"]
    assert rings["mistral"].keys() == rings["gemma4"].keys() == {"sliding_attention"}


@pytest.mark.parametrize("name", SLIDING)
def test_a_window_is_a_ring(side, name):
    """By law: once the window is full, a token is written in place and nothing else is copied."""
    model = side(FOLDERS[name])
    window, sliding = windowed(model)
    cache, layer = model.make_cache("sliding"), sliding.index(True)
    tokens = drawn(model, count=window + 6)
    model.forward(tokens[:, : window + 1], cache=cache)
    model.forward(tokens[:, :1], cache=cache)
    before = [np.array(host(model, one)) for one in cache.keys[layer].arrays()]
    held = cache.keys[layer].arrays()[0]
    model.forward(tokens[:, 1:2], cache=cache)
    after = cache.keys[layer].arrays()
    if isinstance(held, np.ndarray):  # on MLX a write makes a new graph
        assert after[0] is held
    changed = (host(model, after[0]) != before[0]).any(axis=(0, 1, 3))
    assert after[0].shape[2] == window and changed.sum() == 1
