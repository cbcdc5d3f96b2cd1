"""Models that mlx-lm quantised to tiny floats: mxfp4, mxfp8, nvfp4. By witness, live."""

import contextlib
import io
import json
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from tests.peers.conftest import Drawn
from tests.witnesses import build, build_llama
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import EDITS, ENGINES, Runner, redeclared

MODES = {
    mode: {"bits": bits, "group_size": size} for (bits, size), mode in build.MINIFLOATS.items()
}
FAMILIES = ("qwen3", "llama", "llama with biases")
# Every matrix has inputs in multiples of 64, so that any mode fits anywhere.
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "head_dim": 16}


@pytest.fixture
def draw(seed_for, tmp_path):
    """Return a function that makes a fresh checkpoint of a family, and quantises it."""

    def make(family: str, tied: bool, packing: dict[str, Any], predicate: Any = None) -> Drawn:
        seed = seed_for("minifloats", family, tied, packing)
        keys = build_llama.config(family, "default", **SIZES, tie_word_embeddings=tied)
        plain = build_llama.save(
            build_llama.random_model(seed, keys),
            tmp_path / "plain",
            dtype="bfloat16",
            spelling="type",
        )
        chosen = predicate and predicate(seed)
        with contextlib.redirect_stdout(io.StringIO()):
            folder = build.convert(plain, tmp_path / "packed", **packing, predicate=chosen)
        return Drawn(folder, build.prompts(seed, keys["vocab_size"]))

    return make


def mixed(seed: int) -> build.Predicate:
    return build.mixed(seed, build.EVERY_MODE)


def mlx_logits(drawn: Drawn) -> np.ndarray:
    """Return the logits of mlx-lm in float32."""
    model, _ = mlx_lm.load(str(drawn.folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array(drawn.tokens)).astype(mx.float32))


def compare(drawn: Drawn, row: str, judge) -> None:
    """Hold every engine against transformers: logits, cached logits, greedy continuation."""
    model = build_llama.packed_truth(drawn.folder)
    expected = build_llama.logits(model, drawn.tokens)
    ids, seen = build_llama.greedy(model, drawn.tokens)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        judge(engine, row, runner.logits(drawn.tokens), expected)
        judge(engine, f"{row}, cached", runner.chunked(drawn.tokens, [3, 1, 35, 1]), expected)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_mode(family, mode, tied, draw, judge):
    drawn = draw(family, tied, {"mode": mode} | MODES[mode])
    checkpoint = Runner("reference", drawn.folder).model.checkpoint
    stored = checkpoint.stored("model.layers.0.self_attn.q_proj.weight")
    sizes = MODES[mode]["bits"], MODES[mode]["group_size"]
    assert (stored.mode, stored.bits, stored.group_size) == (mode, *sizes)
    assert stored.scale_dtype == "U8" and not checkpoint.warnings
    compare(drawn, mode, judge)


@pytest.mark.parametrize("family", FAMILIES)
def test_modes_that_are_mixed_with_affine(family, tied, draw, judge):
    drawn = draw(family, tied, {"mode": "mxfp4"} | MODES["mxfp4"], mixed)
    checkpoint = Runner("reference", drawn.folder).model.checkpoint
    found = {checkpoint.stored(name).mode for name in checkpoint.names}
    assert found == {None, "affine", *MODES} and not checkpoint.warnings
    compare(drawn, "mixed modes", judge)


@pytest.mark.parametrize("edit", EDITS)
def test_modes_declared_otherwise(edit, tied, draw, judge, tmp_path):
    """The bytes of the scales tell the mode whatever the config says, and a warning is given."""
    drawn = draw("qwen3", tied, {"mode": "nvfp4"} | MODES["nvfp4"], mixed)
    expected = build_llama.logits(build_llama.packed_truth(drawn.folder), drawn.tokens)
    folder = redeclared(drawn.folder, tmp_path / "edited", EDITS[edit])
    for engine in ENGINES:
        runner = Runner(engine, folder)
        assert any("inferred from their shapes" in one for one in runner.model.checkpoint.warnings)
        judge(engine, f"mixed modes, {edit}", runner.logits(drawn.tokens), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_mlx_lm(family, mode, tied, draw, judge):
    """It looks the embedding up in bfloat16, which holds every number of these modes exactly."""
    drawn = draw(family, tied, {"mode": mode} | MODES[mode])
    config = json.loads((drawn.folder / "config.json").read_text(encoding="utf-8"))
    assert config["quantization"]["mode"] == mode
    expected = mlx_logits(drawn)
    for engine in ENGINES:
        found = Runner(engine, drawn.folder).logits(drawn.tokens)
        judge(engine, f"mlx-lm, {mode}", found, expected)
