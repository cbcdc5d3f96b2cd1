"""Caches under models of packed weights, of narrow heads, and of rope that a text's length changes.

Every cache under every architecture: `tests/long/test_caches_of_every_architecture.py`. By loop.
"""

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.arrays import to_numpy
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.kinds import (
    AFFINE_BITS,
    EXACT,
    KINDS,
    QUANTISED,
    ROTATING,
    TURBO_BITS,
    kept_whole,
)
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

WITNESSES = MODELS.parent
FOLDERS = {
    "qwen3": MODELS / "untied_float32",
    "qwen3 packed": MODELS / "affine_mixed",
    "gpt2": WITNESSES / "gpt2/original",
    "mistral": WITNESSES / "llama/mistral_window",
    "llama": WITNESSES / "llama/llama_dynamic",
    "gemma4": WITNESSES / "gemma4/effective",
    "gemma4 experts": WITNESSES / "gemma4/sparse",
    "qwen3_moe": next(iter(sorted((WITNESSES / "qwen3_moe").iterdir()))),
}
SPECIAL = ("qwen3 packed", "llama")  # packed weights; dynamic rope, and heads of 10
SIDES = {
    "reference": lambda folder: reference.load(folder),
    "cpu": lambda folder: fast.load(folder, backend="cpu"),
    "mlx": lambda folder: fast.load(folder, backend="mlx"),
}
LIMITS = {"int8": 0.1, "affine8": 0.1, "affine4": 1.0, "turbo4": 0.5, "turbo3": 1, "turbo2": 1.5,
          "turbo4-mse": 0.5, "turbo3-mse": 1, "turbo2-mse": 1.5}  # fmt: skip
CHUNKS = [(0, 7), (7, 8), (8, 9), (9, 12)]


def host(model, value) -> np.ndarray:
    return to_numpy(value)


def drawn(model, rows=1, count=12) -> np.ndarray:
    return np.random.default_rng(4).integers(1, model.config.vocab_size, (rows, count))


def holds_codes(cache) -> bool:
    """Tell whether every layer holds codes of some token, of its keys and of its values."""
    parts = [part for pair in cache.state() for part in pair]
    return all(any("int" in str(one.dtype) and one.shape[2] for one in part) for part in parts)


def cache_of(model, kind):
    """Make room for the 12 tokens of these tests where a kind asks; quantise all but 2."""
    told = {"preallocated": {"room": 12}} | {one: {"size": 12} for one in ROTATING}
    told |= {one: {"recent": 2} for one in TURBO_BITS}
    return model.make_cache(kind, **told.get(kind, {}))


@sampled(0)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", SPECIAL)
def test_chunks_through_a_cache_give_what_the_whole_text_gives(side, name):
    model = SIDES[side](FOLDERS[name])
    tokens = drawn(model)
    whole = host(model, model.forward(tokens))
    found = {}
    for kind in KINDS:
        cache = cache_of(model, kind)
        parts = [host(model, model.forward(tokens[:, a:b], cache=cache)) for a, b in CHUNKS]
        found[kind] = np.concatenate(parts, axis=1)
    for kind in (*EXACT, *ROTATING):
        assert np.abs(found[kind] - whole).max() < 5e-5 * whole.std(), kind
        if kind in EXACT[:3]:  # fewer keys may be summed in another order
            assert (found[kind] == found["concatenating"]).all(), kind
    # What quantising costs depends on the model: docs/caches.md has it as measured.
    assert set(LIMITS) == {*QUANTISED}
    for kind, limit in LIMITS.items():
        off = np.sqrt(np.mean((found[kind] - whole) ** 2)) / whole.std()
        if len(kept_whole(kind, model.config)) == model.config.num_hidden_layers:
            assert off < 5e-5, kind
        else:
            assert 0 < off < limit, kind


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", SPECIAL)
def test_the_best_tokens_are_those_without_a_cache(side, name):
    """By loop: each new token from the whole text anew; then with each cache that loses nothing."""
    model = SIDES[side](FOLDERS[name])
    prompt = drawn(model, count=5)[0].tolist()
    text = list(prompt)
    for _ in range(7):
        text.append(int(host(model, model.forward([text]))[0, -1].argmax()))
    for kind in EXACT:
        cache, found = cache_of(model, kind), list(prompt)
        new = prompt
        for _ in range(7):
            new = [int(host(model, model.forward([new], cache=cache))[0, -1].argmax())]
            found += new
        assert found == text, kind


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_trimmed_text_and_branches_go_on_as_if_nothing_had_been(side, kind):
    """By law: the same bits as a cache that never saw what was forgotten, or the other branch."""
    model = SIDES[side](FOLDERS["qwen3 packed"])
    tokens, other = drawn(model), drawn(model)[:, ::-1]
    fresh = cache_of(model, kind)
    model.forward(tokens[:, :6], cache=fresh)
    wanted = host(model, model.forward(tokens[:, 6:8], cache=fresh))
    assert holds_codes(fresh) == (kind in QUANTISED)

    cache = cache_of(model, kind)
    model.forward(tokens[:, :6], cache=cache)
    branch = cache.branch()
    model.forward(other[:, :4], cache=cache)
    found = [host(model, model.forward(tokens[:, 6:8], cache=branch))]
    cache.trim(4)
    found.append(host(model, model.forward(tokens[:, 6:8], cache=cache)))
    for one in found:
        assert (one == wanted).all()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", [*EXACT, "int8", *AFFINE_BITS])
def test_rows_of_unequal_length_are_each_their_own(side, kind):
    """By loop: each row alone, without padding; then both a step further."""
    model = SIDES[side](FOLDERS["qwen3 packed"])
    tokens, lengths = drawn(model, rows=2, count=7), np.array([7, 3])
    cache = cache_of(model, kind)
    model.forward(tokens, cache=cache, lengths=lengths)
    step = host(model, model.forward(tokens[:, :1], cache=cache))
    assert holds_codes(cache) == (kind in QUANTISED)
    for row, length in enumerate(lengths):
        text = [*tokens[row, :length], tokens[row, 0]]
        own = cache_of(model, kind) if kind in QUANTISED else None
        alone = host(model, model.forward([text], cache=own))[0, -1]
        assert np.abs(step[row, 0] - alone).max() < 5e-5 * alone.std()


@sampled(4)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("name", "width"), [("qwen3", 20), ("qwen3 packed", None)])
@pytest.mark.parametrize("kind", AFFINE_BITS)
def test_heads_that_are_in_no_groups_are_kept_and_told(side, name, width, kind):
    """By hand: MLX packs groups of 32 or 64; what it does not pack is said in one line."""
    model = SIDES[side](FOLDERS[name])
    cache = cache_of(model, kind)
    model.forward(drawn(model), cache=cache)
    layers = model.config.num_hidden_layers
    told = f"{layers} of {layers} layers are kept as they are: heads of {width} are not of a "
    assert list(cache.warnings) == ([told + "multiple of 32"] if width else [])
    assert holds_codes(cache) == (width is None)


@sampled(1, "cpu")
@pytest.mark.parametrize("side", SIDES)
def test_a_text_is_written_with_any_cache(side):
    """By law: those that lose nothing write one text, and all write the demo's answer."""
    model = SIDES[side](DEMO)
    texts = {}
    for kind in (None, *EXACT, "int8", "affine8"):
        made = Generation(model, SamplingOptions(), seeded(0), ignore_eos=False, cache=kind)
        question = made.tokenizer.encode_chat([{"role": "user", "content": "What is 2+2?"}])
        cache = made.made_cache(len(question) + 30)
        texts[kind] = made.run(question, 30, lambda text: None, cache=cache)["text"]
        assert holds_codes(cache) == (kind in QUANTISED)
    assert set(texts.values()) == {"2 + 2 equals 4."}
