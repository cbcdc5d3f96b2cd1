"""Gemma 4 in every build against what transformers computed in float32.

By witness: tests/witnesses/make_gemma4.py.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.sampled import sampled
from tests.witnesses import whole_models
from tests.witnesses.runners import ENGINES, Runner, redeclared

FOLDER = Path(__file__).parents[2] / "witnesses" / "gemma4"
HIDDEN = (".act_fn",)
TOKENS = np.arange(30)[None] * 7 % 110


@pytest.fixture(params=sorted(path.name for path in FOLDER.iterdir()))
def folder(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.mark.parametrize("engine", ("float64", *ENGINES))
def test_logits(folder, engine, judge):
    whole_models.check_logits(folder, engine, judge)


@pytest.mark.parametrize("engine", ("float64", *ENGINES))
def test_every_module_gives_what_its_hook_saw(folder, engine, judge):
    whole_models.check_modules(folder, engine, judge, hidden=HIDDEN)


@sampled(2, "sparse-cpu")
def test_cached_chunks_equal_the_prefill(folder, engine, judge):
    whole_models.check_cached(folder, engine, judge)


def test_greedy_continuation(folder, engine):
    whole_models.check_greedy(folder, engine)


def test_prompts_of_unequal_length_go_on_as_if_alone(folder, engine, judge):
    whole_models.check_unequal(folder, engine, judge)


def test_trace_changes_no_bit(folder, engine):
    whole_models.check_trace(folder, engine)


def test_heads_have_two_widths(engine):
    """By hand: sliding layers have 2 heads of 12 for keys, full ones 1 of 16."""
    taps = Runner(engine, FOLDER / "dense").taps(TOKENS)
    shapes = [taps[f"model.layers.{layer}.self_attn.k_rope"].shape for layer in range(3)]
    assert shapes == [(1, 2, 30, 12), (1, 1, 30, 16), (1, 1, 30, 16)]


def test_only_a_quarter_of_a_full_head_turns(engine):
    """By hand: of 8 pairs the first 2 turn, which are dims 0, 1 and 8, 9; the rest stays put."""
    taps = Runner(engine, FOLDER / "dense").taps(TOKENS)
    before = taps["model.layers.1.self_attn.k_norm"].swapaxes(1, 2)
    after = taps["model.layers.1.self_attn.k_rope"]
    moved = (before != after).any(axis=(0, 1, 2))
    assert np.flatnonzero(moved).tolist() == [0, 1, 8, 9]


def test_keys_are_values_before_their_norm(engine):
    """By law: full layers of this build project no values, and normalise the raw keys."""
    runner = Runner(engine, FOLDER / "dense")
    taps = runner.taps(TOKENS)
    assert "model.layers.0.self_attn.v_proj" in taps
    assert "model.layers.1.self_attn.v_proj" not in taps
    raw = taps["model.layers.1.self_attn.k_proj"].astype(np.float64)
    expected = raw / np.sqrt(np.mean(raw**2, axis=-1, keepdims=True) + 1e-6)
    found = taps["model.layers.1.self_attn.v_norm"][:, :, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_layers_without_keys_take_those_of_the_last_of_their_kind(engine):
    """By law: they write nothing to the cache, and one cache serves both."""
    runner = Runner(engine, FOLDER / "effective")
    cache = runner.model.make_cache()
    runner.logits(TOKENS, cache=cache)
    assert [bool(store.arrays()) for store in cache.keys] == [True, True, False, False]


def test_mlps_without_keys_are_twice_as_wide(engine):
    """By hand: 48, and 96 where `use_double_wide_mlp` says so."""
    taps = Runner(engine, FOLDER / "effective").taps(TOKENS)
    widths = [taps[f"model.layers.{layer}.mlp.up_proj"].shape[-1] for layer in range(4)]
    assert widths == [48, 48, 96, 96]


@pytest.mark.parametrize("key, value", [
    ("final_logit_softcapping", None),
    ("sliding_window", 5),
    ("rms_norm_eps", 0.1),
])  # fmt: skip
def test_a_key_changes_the_model(engine, tmp_path, key, value):
    """By law: the key is read, and not guessed."""
    before = Runner(engine, FOLDER / "dense").logits(TOKENS)

    def edit(config):
        config[key] = value

    folder = redeclared(FOLDER / "dense", tmp_path / "model", edit)
    after = Runner(engine, folder).logits(TOKENS)
    assert np.abs(before - after).max() > 0.01 * before.std()


def test_the_cap_is_never_passed(engine):
    """By hand: 1.5 in these models."""
    taps = Runner(engine, FOLDER / "dense").taps(TOKENS)
    assert np.abs(taps["logits"]).max() < 1.5
    assert np.abs(taps["lm_head"]).max() > np.abs(taps["logits"]).max()


def test_numbers_of_a_cache(folder):
    """By hand: keys and values of the layers that own some."""
    expected = {"dense": 2 * (2 * 12 + 16 + 16), "sparse": 2 * (2 * 12 + 16)}
    expected["effective"] = 2 * (2 * 12 + 2 * 16)
    assert open_checkpoint(folder).config.cached_per_token == expected[folder.name]


def test_no_more_of_a_table_is_read_than_is_asked_for(monkeypatch):
    """By hand: three tokens, three rows of the layers' own table, which is larger than all else."""
    runner, read, rows = Runner("reference", FOLDER / "effective"), [], []
    checkpoint = runner.model.checkpoint
    whole, some = checkpoint.tensor, checkpoint.tensor_at

    def tensor_at(name, asked):
        rows.append((name, list(asked)))
        return some(name, asked)

    monkeypatch.setattr(checkpoint, "tensor", lambda name: read.append(name) or whole(name))
    monkeypatch.setattr(checkpoint, "tensor_at", tensor_at)
    runner.logits(np.array([[7, 3, 7, 100]]))
    assert "model.embed_tokens_per_layer.weight" not in read
    assert ("model.embed_tokens_per_layer.weight", [3, 7, 100]) in rows
