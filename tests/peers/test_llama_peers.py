"""Llama, Mistral, Qwen2, every rope scaling: transformers and mlx-lm. By witness, live."""

import contextlib
import io
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.reference.checkpoint.errors import InputError
from tests.peers.conftest import Drawn
from tests.witnesses import build, build_llama
from tests.witnesses.build_llama import BY_LENGTH, FAMILIES, ORIGINAL, SCALINGS
from tests.witnesses.judge import error, same_tokens
from tests.witnesses.runners import ENGINES, Runner

SPELLINGS = ("rope_parameters", "rope_type", "type")
STEADY = [scaling for scaling in SCALINGS if scaling not in BY_LENGTH]
CHUNKS = ([1, 9, 20, 10], [1] * build.PROMPT)
WRONG = 1e-2  # what a peer that is wrong is off by, at least


@pytest.fixture
def draw(seed_for, tmp_path):
    """Return a function that makes a fresh checkpoint of a family with a scaling."""

    def make(family: str, scaling: str, *, spelling: str | None = None, **more: Any) -> Drawn:
        seed = seed_for("llama", family, scaling)
        rng = np.random.default_rng(seed)
        keys = build_llama.config(family, scaling, **(draw_sizes(rng) | more))
        keys.setdefault("tie_word_embeddings", bool(rng.integers(2)))
        folder = build_llama.save(
            build_llama.random_model(seed, keys),
            tmp_path / "model",
            dtype=str(rng.choice(["float32", "float16", "bfloat16"])),
            spelling=spelling or str(rng.choice(SPELLINGS)),
        )
        return Drawn(folder, build.prompts(seed, keys["vocab_size"]))

    return make


def draw_sizes(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the sizes of a small model, its base too."""
    groups = int(rng.integers(2, 4))
    return {
        "vocab_size": int(rng.integers(60, 200)),
        "hidden_size": groups * 4 * int(rng.integers(3, 9)),
        "intermediate_size": 8 * int(rng.integers(5, 15)),
        "num_attention_heads": 2 * groups,
        "num_key_value_heads": groups,
        "head_dim": 2 * int(rng.integers(3, 13)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-5, 1e-3])),
        "theta": float(rng.choice([1e4, 5e5, 1e6])),
    }


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family, scaling, draw, judge):
    """Prompts longer than the window and than the original length, and one that is shorter."""
    drawn = draw(family, scaling)
    model = build.truth(drawn.folder)
    short = drawn.tokens[:, : ORIGINAL - 3]
    expected = build_llama.logits(model, drawn.tokens)
    expected_short = build_llama.logits(model, short)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        judge(engine, scaling, runner.logits(drawn.tokens), expected)
        judge(engine, f"{scaling}, short", runner.logits(short), expected_short)


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_and_untied(family, draw, judge):
    for tied in (True, False):
        drawn = draw(family, "default", tie_word_embeddings=tied)
        expected = build_llama.logits(build.truth(drawn.folder), drawn.tokens)
        for engine in ENGINES:
            runner = Runner(engine, drawn.folder)
            assert runner.model.config.tie_word_embeddings is tied
            judge(engine, "tied" if tied else "untied", runner.logits(drawn.tokens), expected)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", ["llama with biases", "mistral with a window", "qwen2"])
def test_cached(family, scaling, draw, judge):
    """Where frequencies stand still a cache changes nothing; elsewhere it does as transformers'."""
    drawn = draw(family, scaling)
    model = build.truth(drawn.folder)
    for plan in CHUNKS:
        expected = build_llama.chunked(model, drawn.tokens, plan)
        whole = build_llama.logits(model, drawn.tokens)
        for engine in ENGINES:
            found = Runner(engine, drawn.folder).chunked(drawn.tokens, plan)
            judge(engine, f"cached, {scaling}", found, expected)
            if scaling not in BY_LENGTH:
                judge(engine, "cached or not", found, whole)


@pytest.mark.parametrize("scaling", ["default", "llama3", "yarn", "dynamic", "longrope"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family, scaling, draw):
    """Two equal prompts, and two unequal ones that go on as each does alone."""
    drawn, lengths = draw(family, scaling), [build.PROMPT, build.SHORT]
    model = build.truth(drawn.folder)
    ids, seen = build_llama.greedy(model, drawn.tokens)
    unequal_ids, unequal_seen = build_llama.greedy_unequal(model, drawn.tokens)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)
        found, _ = runner.greedy(drawn.tokens, build.GREEDY, lengths=lengths)
        same_tokens(found, unequal_ids, unequal_seen)


@pytest.mark.parametrize("family", FAMILIES)
def test_modules(family, draw, judge):
    drawn = draw(family, "yarn")
    expected = build.activations(build.truth(drawn.folder), drawn.tokens)
    for engine in ENGINES:
        found = Runner(engine, drawn.folder).taps(drawn.tokens)
        for name, value in expected.items():
            if engine == "reference" or not name.endswith("mlp.act_fn"):
                judge(engine, "modules", found[name], value)


WIDE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("family", ["llama", "llama with biases", "mistral with a window", "qwen2"])
def test_packed(family, bits, draw, judge, tmp_path):
    """What mlx-lm quantises, against its dequantised values: `bias` and `biases` are two things."""
    drawn = draw(family, "yarn", spelling="type", intermediate_size=96, **WIDE)
    with contextlib.redirect_stdout(io.StringIO()):
        folder = build.convert(drawn.folder, tmp_path / "packed", bits=bits, group_size=32)
    expected = build_llama.logits(build_llama.packed_truth(folder), drawn.tokens)
    for engine in ENGINES:
        runner = Runner(engine, folder)
        name = "model.layers.0.self_attn.q_proj.weight"
        assert runner.model.checkpoint.stored(name).bits == bits
        judge(engine, f"{bits} bits", runner.logits(drawn.tokens), expected)


def test_dynamic_rope_of_transformers_remembers_an_earlier_text(draw, judge):
    """By witness: after a longer text transformers answers a prompt otherwise. We do not."""
    drawn = draw("llama", "dynamic")
    model, middle = build.truth(drawn.folder), drawn.tokens[:, : ORIGINAL + 4]
    clean = build_llama.logits(model, middle)
    build_llama.logits(model, drawn.tokens)
    assert error(build.logits(model, middle), clean) > WRONG
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        runner.logits(drawn.tokens)
        judge(engine, "after a longer text", runner.logits(middle), clean)


@pytest.mark.parametrize("head_dim", [3, 7])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_an_odd_head_is_refused_by_all(family, head_dim, tmp_path):
    """transformers refuses 7 in the config and stumbles over 3 in the forward pass."""
    keys = build_llama.config(family, "default", head_dim=head_dim)
    with pytest.raises(Exception, match=r"even rotary dimension|must match the size") as caught:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys))
        model(torch.arange(5)[None])
    assert caught.type.__name__ in ("StrictDataclassClassValidationError", "RuntimeError")
    build.save(build_llama.random_model(0, keys | {"head_dim": 8}), tmp_path, dtype="float32")
    build.edit_config(tmp_path, lambda config: config.update(head_dim=head_dim))
    for engine in ENGINES:
        with pytest.raises(InputError, match=f"head_dim={head_dim} is odd"):
            Runner(engine, tmp_path)


def mlx_logits(drawn: Drawn) -> np.ndarray:
    """Return what mlx-lm computes in float32, whatever the file holds."""
    build.write_tokenizer(drawn.folder)
    model, _ = mlx_lm.load(str(drawn.folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array(drawn.tokens)))


EVEN = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
RIGHT = {
    ("llama", "default"): {},
    ("llama with biases", "linear"): {},
    ("llama", "llama3"): {},
    ("llama", "dynamic"): {},
    ("llama with biases", "yarn"): {},
    ("llama", "longrope"): {},
    ("mistral", "default"): {},
    # Its Qwen2 takes the heads for equal shares of the width.
    ("qwen2", "default"): EVEN,
    ("qwen2", "yarn"): EVEN,
    ("qwen3", "yarn"): {},
}


@pytest.mark.parametrize(("family", "scaling"), RIGHT)
def test_mlx_lm_where_it_is_right(family, scaling, draw, judge):
    """With the old spelling, and without the keys that it ignores, it is a second witness."""
    drawn = draw(family, scaling, spelling="rope_type", **RIGHT[family, scaling])
    expected = mlx_logits(drawn)
    for engine in ENGINES:
        found = Runner(engine, drawn.folder).logits(drawn.tokens)
        judge(engine, f"mlx-lm, {scaling}", found, expected)


def drop_tie(config: dict[str, Any]) -> None:
    del config["tie_word_embeddings"]


IGNORED = {
    "the window of Mistral": ("mistral with a window", "default", "rope_type"),
    "theta in rope_parameters": ("llama", "default", "rope_parameters"),
    "llama3 in rope_parameters": ("llama", "llama3", "rope_parameters"),
    "the truncate of yarn": ("llama", "yarn, every key", "rope_type"),
    "that mscale stands alone": ("llama", "yarn, mscale alone", "rope_type"),
    "the attention factor of yarn": ("llama", "yarn, attention factor", "rope_type"),
    "the factor of longrope": ("llama", "longrope, factor", "rope_type"),
}


@pytest.mark.parametrize("case", IGNORED)
def test_mlx_lm_ignores(case, draw, judge):
    """By witness: mlx-lm is off without a word, transformers and we agree."""
    family, scaling, spelling = IGNORED[case]
    drawn = draw(family, scaling, spelling=spelling, theta=1e6, head_dim=24)
    expected = build_llama.logits(build.truth(drawn.folder), drawn.tokens)
    assert error(mlx_logits(drawn), expected) > WRONG
    for engine in ENGINES:
        judge(engine, case, Runner(engine, drawn.folder).logits(drawn.tokens), expected)


def test_mlx_lm_takes_the_long_factors_for_short_prompts(draw, judge):
    drawn = draw("llama", "longrope", spelling="rope_type")
    drawn = Drawn(drawn.folder, drawn.tokens[:, :ORIGINAL])
    expected = build_llama.logits(build.truth(drawn.folder), drawn.tokens)
    assert error(mlx_logits(drawn), expected) > WRONG
    for engine in ENGINES:
        judge(
            engine, "longrope, short", Runner(engine, drawn.folder).logits(drawn.tokens), expected
        )


def test_mlx_lm_ties_a_head_that_the_config_does_not_mention(draw, judge):
    drawn = draw("llama", "default", spelling="rope_type", tie_word_embeddings=False)
    build.edit_config(drawn.folder, drop_tie)
    expected = build_llama.logits(build.truth(drawn.folder), drawn.tokens)
    assert error(mlx_logits(drawn), expected) > WRONG
    for engine in ENGINES:
        judge(engine, "no tie", Runner(engine, drawn.folder).logits(drawn.tokens), expected)


def test_two_heads_are_two_models(draw, judge):
    """By witness: of a tied checkpoint with another head stored, each engine runs another one."""
    drawn = draw("llama", "default", spelling="rope_type", tie_word_embeddings=False)
    untied = build_llama.logits(build.truth(drawn.folder), drawn.tokens)
    build.edit_config(drawn.folder, lambda config: config.update(tie_word_embeddings=True))
    judge("transformers", "two heads", build_llama.logits(build.truth(drawn.folder), drawn.tokens),
          untied)  # fmt: skip
    tied = mlx_logits(drawn)
    assert error(tied, untied) > WRONG
    for engine in ENGINES:
        judge(engine, "two heads", Runner(engine, drawn.folder).logits(drawn.tokens), tied)
