"""Models that mlx-lm quantised, against transformers on the unpacked values and against mlx-lm."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from tests.peers.conftest import Drawn, draw_wide
from tests.witnesses import build
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import EDITS, ENGINES, Runner, redeclared

GROUP_SIZES = (32, 64, 128)
WIDTHS = (2, 3, 4, 5, 6, 8)


def draw(folder, seed, *, tied, storage, **packing) -> Drawn:
    """Store a fresh model with transformers and quantise it with mlx-lm."""
    config = draw_wide(seed) | {"tie_word_embeddings": tied}
    plain = build.save(build.random_model(seed, **config), folder / "plain", dtype=storage)
    packed = build.convert(plain, folder / "packed", **packing)
    return Drawn(packed, build.prompts(seed, config["vocab_size"]))


def mlx_logits(drawn: Drawn) -> np.ndarray:
    """Return the logits of mlx-lm in float32, scales widened."""
    model, _ = mlx_lm.load(str(drawn.folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array(drawn.tokens)))


def compare(drawn: Drawn, row: str, judge) -> None:
    """Hold every engine against both peers: logits, cached logits and greedy continuation."""
    model = build.truth(drawn.folder)
    expected, theirs = build.logits(model, drawn.tokens), mlx_logits(drawn)
    ids, seen = build.greedy(model, drawn.tokens)
    judge("mlx-lm", row, theirs, expected)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        found = runner.logits(drawn.tokens)
        judge(engine, row, found, expected)
        judge(engine, f"{row}, to mlx-lm", found, theirs)
        judge(engine, f"{row}, cached", runner.chunked(drawn.tokens, [3, 1, 35, 1]), expected)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("bits", WIDTHS)
def test_one_packing(bits, group_size, tied, storage, seed_for, judge, tmp_path):
    seed = seed_for("packed", bits, group_size, tied, storage)
    drawn = draw(tmp_path, seed, tied=tied, storage=storage, bits=bits, group_size=group_size)
    compare(drawn, f"{bits} bits", judge)


def test_mixed_packings(tied, storage, seed_for, judge, tmp_path):
    seed = seed_for("mixed", tied, storage)
    mixed = {"bits": 4, "group_size": 128, "predicate": build.mixed(seed)}
    compare(draw(tmp_path, seed, tied=tied, storage=storage, **mixed), "mixed", judge)


@pytest.mark.parametrize("edit", EDITS)
def test_mixed_packings_declared_otherwise(edit, tied, storage, seed_for, judge, tmp_path):
    seed = seed_for("declared otherwise", edit, tied, storage)
    mixed = {"bits": 4, "group_size": 128, "predicate": build.mixed(seed)}
    drawn = draw(tmp_path, seed, tied=tied, storage=storage, **mixed)
    expected = build.logits(build.truth(drawn.folder), drawn.tokens)
    folder = redeclared(drawn.folder, tmp_path / "edited", EDITS[edit])
    for engine in ENGINES:
        judge(engine, f"mixed, {edit}", Runner(engine, folder).logits(drawn.tokens), expected)
    # mlx-lm, too, reads off the shapes what its config is silent about.
    if edit == "undeclared":
        judge("mlx-lm", f"mixed, {edit}", mlx_logits(Drawn(folder, drawn.tokens)), expected)


def test_biased_projections_packed(tied, storage, seed_for, engine, judge, tmp_path):
    """mlx-lm's Qwen3 has no biases: packed by mx.quantize, and held against transformers alone."""
    seed = seed_for("biased", tied, storage)
    config = draw_wide(seed) | {"tie_word_embeddings": tied, "attention_bias": True}
    folder = build.save(build.random_model(seed, **config), tmp_path / "model", dtype=storage)
    build.quantize_by_hand(folder, bits=WIDTHS[seed % 6], group_size=GROUP_SIZES[seed % 3])
    tokens = build.prompts(seed, config["vocab_size"])
    expected = build.logits(build.truth(folder), tokens)
    judge(engine, "packed with biases", Runner(engine, folder).logits(tokens), expected)
