"""Steps that are begun before the host has an id: the same tokens, and the same cache behind them.

By law, against the plain loop over the same model.
"""

from functools import partial
from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from lockstep import fast
from lockstep.fast.chosen import Chosen
from lockstep.fast.decoding import ahead, autoregressive, host
from lockstep.fast.decoding.sampling import greedy
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling import autoregressive as plain
from tests.every_architecture import CONFIGS, write
from tests.parity.conftest import MODELS
from tests.sampled import sampled

WITNESSES = MODELS.parent
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LOOPS = {"ahead": ahead.generate, "plain": partial(plain.generate, choose=greedy, host=host)}
PACKED = (
    "models/affine_mixed",
    "models/minifloats_mixed",
    "gguf/qwen3_mixed.gguf",
    "gguf/qwen3_tied.gguf",
)


def made(loop, model, *, cache=None, stop=(), count=10, taken=None, chunk=None, watch=None):
    """Return the tokens that were taken of `count`, and the cache as it is left."""
    cache = model.make_cache() if cache is None else cache
    told = {"max_tokens": count, "stop": stop, "cache": cache, "chunk": chunk, "watch": watch}
    coming = LOOPS[loop](model, PROMPT, **told)
    tokens = list(islice(coming, count if taken is None else taken))
    coming.close()
    return tokens, cache


def held(cache) -> list[np.ndarray]:
    pairs = [part for pair in cache.state() for part in pair]
    return [cache.positions.array, *(np.array(one) for arrays in pairs for one in arrays)]


def check_alike(model, **options):
    (found, left), (expected, right) = (made(one, model, **options) for one in LOOPS)
    assert found == expected and left.positions.length == right.positions.length
    assert all(np.array_equal(*pair) for pair in zip(held(left), held(right), strict=True))
    return found, left


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Return a model of an architecture on MLX."""
    root = tmp_path_factory.mktemp("ahead")
    kept = {}

    def found(name):
        if name not in kept:
            folder = write(root / name.replace(" ", "_"), name)
            kept[name] = fast.load(folder, backend="mlx")
        return kept[name]

    return found


@sampled(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_and_cache_are_those_of_the_plain_loop(name, model_of):
    """Where all tokens are taken, where one is a stop id, and where whoever takes them ends it."""
    model = model_of(name)
    tokens, cache = check_alike(model)
    assert len(tokens) == 10 and cache.positions.length == len(PROMPT) + 9
    stop = tokens[4]
    stopped, _ = check_alike(model, stop={stop})
    assert stopped == tokens[: tokens.index(stop) + 1]
    _, cache = check_alike(model, taken=3, chunk=3)
    assert cache.positions.length == len(PROMPT) + 2
    check_alike(model, cache=None, count=1)


def test_a_text_goes_on_from_a_cache_that_was_stepped_back(model_of):
    model = model_of("gemma4 shared")
    tokens, cache = made("ahead", model, taken=4)
    rest = autoregressive.generate(
        model, tokens[-1:], max_tokens=6, stop=(), choose=greedy, cache=cache
    )
    assert [*tokens, *rest] == made("plain", model)[0]


@pytest.mark.parametrize("kind", ["concatenating", "preallocated", "int8", "affine4"])
def test_every_cache_that_steps_back_is_left_alike(model_of, kind):
    model, room = model_of("gemma4 shared"), {"room": 40} if kind == "preallocated" else {}
    found = {}
    for loop in LOOPS:
        tokens, cache = made(loop, model, taken=5, cache=model.make_cache(kind, **room))
        found[loop] = tokens, cache.branch(), held(cache)
    assert cache.steps_back and found["ahead"][0] == found["plain"][0]
    assert all(map(np.array_equal, found["ahead"][2], found["plain"][2]))
    rests = [np.array(model.forward([[7, 8]], cache=cache)) for _, cache, _ in found.values()]
    assert np.array_equal(*rests)


def test_between_two_tokens_the_cache_is_that_of_the_plain_loop(model_of):
    """It can be looked at, gone on with elsewhere while the loop waits, and fed in between."""
    model, found = model_of("llama"), {}
    for loop, generate in LOOPS.items():
        cache = model.make_cache()
        coming = generate(model, PROMPT, max_tokens=9, stop=(), cache=cache, chunk=None, watch=None)
        tokens, lengths = [next(coming), next(coming)], [cache.positions.length]
        lengths.append(len(PROMPT) + 1)
        model.forward([[17, 4]], cache=cache)
        tokens += [next(coming), next(coming)]
        other = cache.branch()
        rest = np.array(model.forward([tokens[-1:]], cache=other))
        coming.close()
        lengths.append(cache.positions.length)
        found[loop] = tokens, lengths, held(cache), rest
    (tokens, lengths, left, rest), (expected, *right) = found.values()
    assert (tokens, lengths) == (expected, right[0]) and lengths[0] == lengths[1]
    assert all(map(np.array_equal, [*left, rest], [*right[1], right[2]]))


def test_an_error_of_the_step_ahead_comes_behind_the_token_before_it(model_of):
    """GPT-2 has 128 positions: the last one's token is there before the next one is refused."""
    found = {}
    for loop in LOOPS:
        tokens = found[loop] = []
        coming = LOOPS[loop](
            model_of("gpt2"), PROMPT * 15, max_tokens=20, stop=(),
            cache=model_of("gpt2").make_cache(), **({"chunk": None, "watch": None}),
        )  # fmt: skip
        with pytest.raises(InputError, match=r"position 128, but the model has positions 0..127"):
            tokens.extend(coming)
    assert found["ahead"] == found["plain"] and len(found["plain"]) == 9


class Stopped(Exception):
    """Somebody wants no more."""


@pytest.mark.parametrize("after", [1, 4])
def test_whoever_watches_hears_every_stage_and_can_end_it(model_of, after):
    model, heard = model_of("llama"), {loop: [] for loop in LOOPS}
    for loop, names in heard.items():
        made(loop, model, count=4, watch=names.append)
    assert heard["ahead"] == heard["plain"] and len(heard["plain"]) == 4 * 4

    steps = []

    def watch(name):
        steps.extend([name] * (name == "logits"))
        if len(steps) > after:
            raise Stopped

    cache = model.make_cache()
    with pytest.raises(Stopped):
        made("ahead", model, count=9, watch=watch, cache=cache)
    assert cache.positions.length == len(PROMPT) + after


@pytest.mark.parametrize("kind", ["rotating", "turbo4"])
def test_a_cache_that_cannot_step_back_is_not_run_ahead_of(model_of, kind, monkeypatch):
    model = model_of("qwen3")
    cache = model.make_cache(kind, **({"size": 6} if kind == "rotating" else {"recent": 2}))
    expected, _ = made("plain", model, cache=cache.branch())
    monkeypatch.setattr(ahead, "generate", None)
    told = {"max_tokens": 10, "stop": (), "choose": greedy}
    assert not cache.steps_back
    assert list(autoregressive.generate(model, PROMPT, **told, cache=cache)) == expected
    with pytest.raises(TypeError, match="not callable"):
        autoregressive.generate(model, PROMPT, **told, cache=model.make_cache("int8"))


@pytest.mark.parametrize("name", PACKED)
def test_ids_on_the_device_look_up_the_rows_of_those_on_the_host(name):
    model = fast.load(WITNESSES / name, backend="mlx")
    ids = np.array([[7, 0, 7, 11]])
    found = model.forward(Chosen(mx.array(ids)))
    assert np.array_equal(np.array(found), np.array(model.forward(ids)))


def test_rows_of_an_adapter_are_found_by_ids_on_the_device():
    rng = np.random.default_rng(0)
    a, b, y = (mx.array(rng.normal(size=shape)) for shape in ((2, 4), (9, 2), (1, 3, 4)))
    ids = np.array([[8, 0, 3]])
    rows = [fast.ops.add_lora_rows(y, one, a, b, scale=0.5) for one in (ids, mx.array(ids))]
    assert np.array_equal(*map(np.array, rows)) and not np.array_equal(rows[0], y)
