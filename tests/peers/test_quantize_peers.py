"""Folders that `lockstep quantize` writes: those of mlx-lm's converter, which loads them."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from lockstep import fast
from lockstep.parity.quantizing import mixed, quantize, recipe_of
from tests.peers.conftest import draw_wide
from tests.peers.test_gemma4_peers import KINDS
from tests.witnesses import build, build_gemma4, build_gpt2, build_qwen3_moe

PACKINGS = [
    {"bits": 4, "group_size": 32}, {"bits": 8, "group_size": 64}, {"bits": 3, "group_size": 64},
    {"bits": 4, "group_size": 32, "mode": "mxfp4"}, {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]  # fmt: skip
GEMMA = {
    "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 32,
    "global_head_dim": 32, "hidden_size_per_layer_input": 0,
}  # fmt: skip
TOKENS = np.array([[1, 5, 2, 9]])


def qwen3(seed: int, folder: Path, storage: str) -> Path:
    config = draw_wide(seed) | {"tie_word_embeddings": bool(seed % 2)}
    return build.save(build.random_model(seed, **config), folder, dtype=storage)


def qwen3_moe(seed: int, folder: Path, storage: str) -> Path:
    model = build_qwen3_moe.random_model(seed, **build_qwen3_moe.PACKABLE)
    plain = build_qwen3_moe.save(model, folder, dtype=storage)
    build.edit_config(plain, build_qwen3_moe.spell_as_before_5)
    return plain


def gpt2(seed: int, folder: Path, storage: str) -> Path:
    config = {"n_embd": 64, "n_head": 4, "vocab_size": 96, "n_layer": 2, "n_positions": 64}
    config |= {"bos_token_id": 0, "eos_token_id": 1}
    plain = build.save(build_gpt2.random_model(seed, **config), folder, dtype=storage)
    build_gpt2.as_on_the_hub(plain)
    return plain


def gemma4(kind: str, extra: dict[str, Any] | None = None):
    def save(seed: int, folder: Path, storage: str) -> Path:
        model = build_gemma4.random_model(seed, **(KINDS[kind] | GEMMA | (extra or {})))
        plain = build_gemma4.save(model, folder, dtype=storage)
        build.edit_config(plain, build_gemma4.spell_as_published)
        return plain

    return save


MODELS = {
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "gpt2": gpt2,
    "gemma4 31B": gemma4("31B"),
    "gemma4 26B-A4B": gemma4("26B-A4B"),
    "gemma4 E2B": gemma4("E2B", {"hidden_size_per_layer_input": 64, "rms_norm_eps": 0.1}),
}


def converted(source: Path, target: Path, **packing: Any) -> Path:
    with contextlib.redirect_stdout(io.StringIO()):
        return build.convert(source, target, **packing)


def compare(ours: Path, theirs: Path) -> None:
    """Hold two folders against each other: names, types, shapes and bytes, and what is declared."""
    found, expected = (mx.load(str(one / "model.safetensors")) for one in (ours, theirs))
    assert found.keys() == expected.keys() and len(found) > 20
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert (found[name].view(mx.uint8) == array.view(mx.uint8)).all().item(), name
    assert declared(ours) == declared(theirs)


def declared(folder: Path) -> dict[str, Any]:
    """Return what a config says of the model, and of single modules where it is something else.

    mlx-lm leaves the mode out for single modules if it is affine, and repeats what holds anyway.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["quantization"] == config["quantization_config"]
    usual = {key: config["quantization"].pop(key) for key in ("group_size", "bits", "mode")}
    own = {key: {"mode": "affine"} | said for key, said in config["quantization"].items()}
    return {"": usual} | {key: said for key, said in own.items() if said != usual}


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_folder_is_that_of_mlx_lm(name, packing, seed_for, storage, tmp_path):
    seed = seed_for("quantize", name, str(packing), storage)
    source = MODELS[name](seed, tmp_path / "dense", storage)
    theirs = converted(source, tmp_path / "theirs", **packing)
    recipe = recipe_of(packing["bits"], packing["group_size"], packing.get("mode", "affine"))
    quantize(source, tmp_path / "ours", recipe)
    compare(tmp_path / "ours", theirs)
    logits = [mlx_lm.load(str(one))[0](mx.array(TOKENS)) for one in (tmp_path / "ours", theirs)]
    assert (logits[0] == logits[1]).all().item()


EVERY = [(bits, group, "affine") for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
EVERY += [(4, 32, "mxfp4"), (8, 32, "mxfp8"), (4, 16, "nvfp4")]


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A dense model whose matrices have rows of 128 and 256."""
    config = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 96}
    folder = tmp_path_factory.mktemp("wide") / "dense"
    build.save(build.random_model(3, **build.SMALL | config), folder, dtype="bfloat16")
    build.write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(("bits", "group", "mode"), EVERY)
def test_mlx_lm_writes_the_same_tokens_from_every_width(wide, bits, group, mode, tmp_path):
    """By witness: each matrix as mlx.core.quantize packs it; and eight tokens, in float32."""
    quantize(wide, tmp_path / "ours", recipe_of(bits, group, mode))
    dense, found = (mx.load(str(one / "model.safetensors")) for one in (wide, tmp_path / "ours"))
    packed = [name for name in found if name.endswith(".scales")]
    assert len(packed) > 10
    for name in packed:
        stem, parts = name.removesuffix(".scales"), ("weight", "scales", "biases")
        with mx.stream(mx.cpu):
            theirs = mx.quantize(dense[f"{stem}.weight"], bits=bits, group_size=group, mode=mode)
        for part, other in zip(parts, theirs, strict=False):
            ours = found[f"{stem}.{part}"]
            assert ours.dtype == other.dtype and (ours.view(mx.uint8) == other.view(mx.uint8)).all()
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    model.set_dtype(mx.float32)
    text, own = [5, 9, 2], fast.load(tmp_path / "ours", backend="mlx")
    for _ in range(8):
        theirs, ours = model(mx.array([text]))[0, -1], own.forward([text])[0, -1]
        assert mx.abs(theirs - ours).max().item() < 1e-4 * ours.std().item()
        assert mx.argmax(theirs).item() == mx.argmax(ours).item()
        text.append(int(mx.argmax(ours).item()))


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
def test_mixed_recipes_are_those_of_mlx_lm(recipe, seed_for, tmp_path):
    seed = seed_for("mixed recipe", recipe)
    config = draw_wide(seed) | {"tie_word_embeddings": False, "num_hidden_layers": 9}
    source = build.save(build.random_model(seed, **config), tmp_path / "dense", dtype="bfloat16")
    with contextlib.redirect_stdout(io.StringIO()):
        build.write_tokenizer(source)
        mlx_lm.convert(
            str(source), str(tmp_path / "theirs"), quantize=True, q_group_size=64,
            q_bits=4, quant_predicate=recipe,
        )  # fmt: skip
    quantize(source, tmp_path / "ours", mixed(recipe, 64))
    found, expected = (
        mx.load(str(tmp_path / one / "model.safetensors")) for one in ("ours", "theirs")
    )
    assert found.keys() == expected.keys()
    assert all(
        (found[name].view(mx.uint8) == expected[name].view(mx.uint8)).all() for name in found
    )
