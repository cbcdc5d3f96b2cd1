"""What mlx-lm loses without a word, or refuses, of checkpoints that are right. By witness, live.

Those of Llama and Mistral are in `test_llama_peers.py`; what Lockstep says of the silent ones is in
`test_mlx_lm_named.py`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from tests.peers import test_gemma4_peers as gemma4_peers
from tests.peers import test_qwen3_moe_peers as moe_peers
from tests.witnesses import build, build_gemma4, build_gpt2, build_llama, build_qwen3_moe
from tests.witnesses.judge import BAR, error
from tests.witnesses.runners import ENGINES, Runner

WRONG = 1e-2  # what it is off by, at least


def mlx_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Return what mlx-lm computes in float32, whatever the file holds."""
    if not (folder / "tokenizer.json").exists():
        build.write_tokenizer(folder)
    model, _ = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array(tokens)))


def test_a_stretched_qwen3_moe(seed_for, judge, tmp_path):
    """The config spells `rope_scaling` as published files do; mlx-lm turns as if it were absent."""

    def make(number: int) -> Path:
        config = build_qwen3_moe.SMALL | moe_peers.KINDS["yarn"]
        model = build_qwen3_moe.random_model(number, **config)
        folder = build_qwen3_moe.save(model, tmp_path / str(number), dtype="float32")
        build.edit_config(folder, build_qwen3_moe.spell_as_before_5)
        build.edit_config(folder, lambda config: config.update(rope_scaling=moe_peers.YARN))
        return folder

    drawn, model = moe_peers.settled(seed_for("mlx-lm loses yarn"), make)
    expected = build.logits(model, drawn.tokens)
    assert error(mlx_logits(drawn.folder, drawn.tokens), expected) > WRONG
    for engine in ENGINES:
        found = Runner(engine, drawn.folder).logits(drawn.tokens)
        judge(engine, "qwen3_moe stretched, mlx-lm off", found, expected)


SIZES = {
    "hidden_size": 192, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 32,
    "global_head_dim": 32, "hidden_size_per_layer_input": 0,
}  # fmt: skip
MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["31B", "26B-A4B"])
def test_tiny_floats_of_gemma4(kind, mode, seed_for, judge, tmp_path):
    """Its tied embedding comes out in bfloat16, and is multiplied by sqrt(192) in that dtype."""
    bits, size = MODES[mode]

    def make(number: int) -> Path:
        config = gemma4_peers.KINDS[kind] | SIZES
        model = build_gemma4.random_model(number, **config)
        plain = build_gemma4.save(model, tmp_path / f"plain{number}", dtype="bfloat16")
        written = json.loads((plain / "config.json").read_text(encoding="utf-8"))
        target = tmp_path / str(number)
        folder = gemma4_peers.converted(plain, target, bits=bits, group_size=size, mode=mode)
        truths[folder] = gemma4_peers.unpacked(folder, written)
        return folder

    truths: dict[Path, Any] = {}
    for number in range(seed := seed_for("gemma4", kind, mode), seed + gemma4_peers.TRIES):
        folder = make(number)
        tokens = build.prompts(number, truths[folder].config.vocab_size)
        if build_gemma4.settled(truths[folder], tokens):
            break
    else:
        raise RuntimeError(f"no seed from {seed} on is far from a tie")
    expected = build.logits(truths[folder], tokens)
    assert error(mlx_logits(folder, tokens), expected) > 20 * BAR
    for engine in ENGINES:
        judge(engine, f"gemma4, {kind}, {mode}", Runner(engine, folder).logits(tokens), expected)


def gpt2(seed: int, folder: Path) -> tuple[Path, Any]:
    """With names that begin with `transformer.`"""
    model = build_gpt2.random_model(seed, **build_gpt2.SMALL)
    build.save(model, folder, dtype="float32")
    build.edit_config(folder, lambda config: config.update(n_ctx=config["n_positions"]))
    return folder, model


def qwen3_moe(seed: int, folder: Path) -> tuple[Path, Any]:
    """With the config that transformers 5 writes."""

    def make(number: int) -> Path:
        model = build_qwen3_moe.random_model(number, **build_qwen3_moe.SMALL)
        return build_qwen3_moe.save(model, folder / str(number), dtype="float32")

    drawn, model = moe_peers.settled(seed, make)
    return drawn.folder, model


def gemma4(seed: int, folder: Path) -> tuple[Path, Any]:
    """With `per_layer_config`."""
    model = build_gemma4.random_model(seed, **build_gemma4.DENSE)
    return build_gemma4.save(model, folder, dtype="float32"), model


def gemma4_nested(seed: int, folder: Path) -> tuple[Path, Any]:
    """With the text model in `text_config`, and no `vocab_size` beside it."""
    plain, model = gemma4(seed, folder / "plain")
    build.write_tokenizer(plain)
    nested = build_gemma4.wrapped(plain, folder / "nested")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, nested)
    return nested, model


def qwen2(seed: int, folder: Path) -> tuple[Path, Any]:
    """With heads that do not share the width equally."""
    keys = build_llama.config("qwen2", "default")
    model = build_llama.random_model(seed, keys)
    return build_llama.save(model, folder, dtype="float32", spelling="rope_type"), model


REFUSED = {
    qwen2: (ValueError, r"[Ss]hape"),
    gpt2: (ValueError, r"parameters not in model"),
    qwen3_moe: (TypeError, r"missing \d+ required positional argument"),
    gemma4: (ValueError, r"[Ss]hape|parameters not in model"),
    gemma4_nested: (ValueError, r"[Ss]hape|parameters not in model"),
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_it_refuses(make: Callable[..., tuple[Path, Any]], seed_for, judge, tmp_path):
    folder, model = make(seed_for("mlx-lm refuses", make.__name__), tmp_path)
    tokens = build.prompts(0, model.config.vocab_size)[:, :9]
    expected = build.logits(model, tokens)
    for engine in ENGINES:
        found = Runner(engine, folder).logits(tokens)
        judge(engine, f"refused by mlx-lm: {make.__name__}", found, expected)
    kind, message = REFUSED[make]
    with pytest.raises(kind, match=message):
        mlx_logits(folder, tokens)
