"""Caches that rotate under whole models, against forward passes without a cache. By loop, by law.

The truth is the reference on the whole text, with the rule of the cache written into the mask:
a query sees the first `KEEP` positions, and of the rest those less than `SIZE - KEEP` back.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.reference.caches.test_models_with_caches import (
    FOLDERS as FEW_TOKENS,
)
from tests.reference.caches.test_models_with_caches import SIDES, WITNESSES, drawn, host
from tests.sampled import sampled

SIZE, KEEP, TOKENS = 6, 2, 19
# Dynamic rope turns by the length of the text, so what was kept of a shorter one is not the same.
FOLDERS = {**FEW_TOKENS, "llama": WITNESSES / "llama/biased_llama3"}
STEPS = [[8, 1, 1, 3, 1, 5], [1] * TOKENS, [3, 3, 1, 2, 1, 4, 1, 1, 1, 1, 1], [TOKENS]]
IN_MASK, MLX = ("rotating", "rotating-temporal"), "rotating-mlx-lm"


@pytest.fixture(params=SIDES)
def side(request):
    return SIDES[request.param]


def hiding_mask(query, key, *, window):
    """Return the mask of a model, less what a rotating cache has dropped. By loop."""
    seen = ops.causal_mask(query, key, window=window)
    narrow = window is not None and window <= SIZE
    for row, i, j in np.ndindex(seen.shape[0], *seen.shape[2:]):
        dropped = key[row, j] >= KEEP and query[row, i] - key[row, j] >= SIZE - KEEP
        seen[row, 0, i, j] &= narrow or not dropped
    return seen


def without_a_cache(folder, tokens, lengths=None) -> np.ndarray:
    """Return the logits of the reference whose mask hides what the cache has dropped."""
    model = reference.load(folder)
    names = {name: getattr(ops, name) for name in ops.__all__}
    model.ops = SimpleNamespace(**{**names, "causal_mask": hiding_mask})
    return model.forward(tokens, lengths=lengths)


def through(model, kind, tokens, steps) -> np.ndarray:
    cache, start, found = model.make_cache(kind, size=SIZE, keep=KEEP), 0, []
    for count in steps:
        part = tokens[:, start : start + count]
        found.append(host(model, model.forward(part, cache=cache)))
        start += count
    assert start == tokens.shape[1]
    return np.concatenate(found, axis=1)


@sampled(5, "cpu-qwen3_moe")
@pytest.mark.parametrize("name", FOLDERS)
def test_a_long_text_in_any_steps(side, name):
    """By loop: as if each token had come alone, in all steps and both orders."""
    model = side(FOLDERS[name])
    tokens = drawn(model, count=TOKENS)
    whole = without_a_cache(FOLDERS[name], tokens)
    assert np.abs(whole - host(model, model.forward(tokens))).max() > 1e-3 * whole.std()
    for kind in IN_MASK:
        for steps in STEPS:
            found = through(model, kind, tokens, steps)
            assert np.abs(found - whole).max() < 5e-5 * whole.std(), (kind, steps)


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma4"])
def test_mlx_lms_rule_is_ours_for_single_tokens_alone(side, name):
    """By law: single tokens are equal; chunks are not, once kept tokens are hidden from them."""
    model = side(FOLDERS[name])
    tokens = drawn(model, count=TOKENS)
    single = [through(model, kind, tokens, [1] * TOKENS) for kind in ("rotating", MLX)]
    assert (single[0] == single[1]).all()
    chunks = [through(model, kind, tokens, STEPS[0]) for kind in ("rotating", MLX)]
    assert np.abs(chunks[0] - chunks[1]).max() > 1e-4 * chunks[0].std()


def test_rows_of_unequal_length_are_each_their_own(side):
    """By loop: each row alone, without padding, far beyond the size of the cache."""
    model = side(FOLDERS["qwen3"])
    tokens, lengths = drawn(model, rows=2, count=9), np.array([9, 3])
    cache = model.make_cache("rotating", size=SIZE, keep=KEEP)
    model.forward(tokens, cache=cache, lengths=lengths)
    for more in range(1, 8):
        step = host(model, model.forward(tokens[:, more - 1 : more], cache=cache))
        for row, length in enumerate(lengths):
            text = [*tokens[row, :length], *tokens[row, :more]]
            alone = without_a_cache(FOLDERS["qwen3"], [text])[0, -1]
            assert np.abs(step[row, 0] - alone).max() < 5e-5 * alone.std()


def test_mlx_lms_rule_is_for_rows_of_one_length(side):
    """By hand: its columns mean nothing where a row has padding among them."""
    model = side(FOLDERS["qwen3"])
    cache = model.make_cache(MLX, size=SIZE)
    with pytest.raises(InputError, match="rows of unequal length, but mlx-lm's rule is of columns"):
        model.forward(drawn(model, rows=2, count=4), cache=cache, lengths=[4, 2])


def test_trims_and_branches(side):
    """By law: what the last step brought can be forgotten; a branch never changes the other."""
    model = side(FOLDERS["qwen3"])
    tokens = drawn(model, count=TOKENS)
    whole = without_a_cache(FOLDERS["qwen3"], tokens)
    cache = model.make_cache("rotating", size=SIZE, keep=KEEP)
    model.forward(tokens[:, :8], cache=cache)
    model.forward(tokens[:, 8:12], cache=cache)
    branch = cache.branch()
    cache.trim(3)
    for one, start in ((cache, 9), (branch, 12), (cache, 10), (branch, 13)):
        found = host(model, model.forward(tokens[:, start : start + 1], cache=one))
        assert np.abs(found[:, 0] - whole[:, start]).max() < 5e-5 * whole.std()
    with pytest.raises(InputError, match="is needed again, but layers with a window have dropped"):
        cache.trim(4)


def test_memory_stays_what_it_was(side):
    """By hand: a cache of 6 holds 6 tokens for ever, in 4 of which it writes by turns."""
    model = side(FOLDERS["qwen3"])
    cache, token = model.make_cache("rotating", size=SIZE, keep=KEEP), drawn(model, count=1)
    sizes = []
    for _ in range(20):
        model.forward(token, cache=cache)
        sizes.append(cache.nbytes)
    assert len(set(sizes)) == 1
