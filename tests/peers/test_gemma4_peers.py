"""Gemma 4 against transformers in float32, and against mlx-lm. By witness, live."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.peers.conftest import Drawn
from tests.witnesses import build, build_gemma4
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

HIDDEN = ".act_fn"
TRIES = 60
LAYERS = {"sliding": "sliding_attention", "full": "full_attention"}
KINDS: dict[str, dict[str, Any]] = {
    "31B": build_gemma4.DENSE,
    "own values": build_gemma4.DENSE | {"attention_k_eq_v": False},
    "no cap": build_gemma4.DENSE | {"final_logit_softcapping": None},
    "untied": build_gemma4.DENSE | {"tie_word_embeddings": False},
    "all full": build_gemma4.DENSE | {"layer_types": [LAYERS["full"]] * 3},
    "26B-A4B": build_gemma4.SPARSE,
    "all experts": build_gemma4.SPARSE | {"num_experts": 4, "top_k_experts": 4},
    "E2B": build_gemma4.SMALL_BUILD,
    "single width": build_gemma4.SMALL_BUILD | {"use_double_wide_mlp": False},
    "nothing shared": build_gemma4.SMALL_BUILD | {"num_kv_shared_layers": 0},
}


def draw_config(seed: int, kind: str) -> dict[str, Any]:
    """Draw the sizes of a small model.

    A layer's own input is normalised after a gate that may be nearly shut for a token. That blows
    up the noise of either side, unless eps is large and vectors are wide.
    """
    sizes = KINDS[kind] | drawn_sizes(seed)
    steady = {"rms_norm_eps": 0.1, "hidden_size": 64, "hidden_size_per_layer_input": 40}
    return sizes | steady if sizes["hidden_size_per_layer_input"] else sizes


def drawn_sizes(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    groups, vocabulary = int(rng.integers(2, 4)), int(rng.integers(80, 200))
    return {
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
        "hidden_size": 8 * int(rng.integers(3, 7)),
        "intermediate_size": 8 * int(rng.integers(4, 9)),
        "num_attention_heads": groups * int(rng.integers(2, 4)),
        "num_key_value_heads": groups,
        "head_dim": 2 * int(rng.integers(4, 10)),
        "global_head_dim": 8 * int(rng.integers(2, 5)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-3])),
        "sliding_window": int(rng.integers(3, 20)),
    }


def settled(seed: int, make: Callable[[int], Path]) -> tuple[Drawn, Gemma4ForCausalLM]:
    """Make checkpoints from one seed after another until no router is near a tie."""
    for number in range(seed, seed + TRIES):
        folder = make(number)
        model = build_gemma4.truth(folder)
        tokens = build.prompts(number, model.config.vocab_size)
        if build_gemma4.settled(model, tokens):
            return Drawn(folder, tokens), model
    raise RuntimeError(f"no seed from {seed} on is far from a tie")


def compare(drawn: Drawn, model: Gemma4ForCausalLM, row: str, judge) -> None:
    """Hold every engine against transformers: logits, cached, unequal, greedy, modules."""
    tokens, lengths = drawn.tokens, [build.PROMPT, build.SHORT]
    expected = build.logits(model, tokens)
    ids, seen = build.greedy(model, tokens)
    unequal_ids, unequal_seen = build.greedy_unequal(model, tokens)
    modules = build_gemma4.activations(model, tokens)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        judge(engine, row, runner.logits(tokens), expected)
        judge(engine, f"{row}, cached", runner.chunked(tokens, [7, 1, 31, 1]), expected)
        same_tokens(runner.greedy(tokens, build.GREEDY)[0], ids, seen)
        found, _ = runner.greedy(tokens, build.GREEDY, lengths=lengths)
        same_tokens(found, unequal_ids, unequal_seen)
        taps = runner.taps(tokens)
        hidden = {name for name in modules if name.endswith(HIDDEN) and engine != "reference"}
        assert len(modules) > 20
        for name in modules.keys() - hidden:
            judge(engine, "modules", taps[name], modules[name])


@pytest.mark.parametrize("kind", KINDS)
def test_stored_by_transformers(kind, storage, seed_for, judge, tmp_path):
    def make(number: int) -> Path:
        model = build_gemma4.random_model(number, **draw_config(number, kind))
        return build_gemma4.save(model, tmp_path / str(number), dtype=storage)

    drawn, model = settled(seed_for("gemma4", kind, storage), make)
    compare(drawn, model, f"gemma4, {kind}", judge)


@pytest.mark.parametrize("kind", ["31B", "26B-A4B", "E2B"])
def test_the_multimodal_layout_is_the_same_model(kind, storage, seed_for, tmp_path):
    """By law: to the bit, wherever the text model lies and however its config is spelled."""
    seed = seed_for("gemma4 wrapped", kind, storage)
    model = build_gemma4.random_model(seed, **draw_config(seed, kind))
    plain = build_gemma4.save(model, tmp_path / "plain", dtype=storage)
    folder = build_gemma4.wrapped(plain, tmp_path / "wrapped")
    tokens = build.prompts(seed, model.config.vocab_size)
    for engine in ENGINES:
        found = [Runner(engine, one).exact(tokens) for one in (plain, folder)]
        assert found[0].tobytes() == found[1].tobytes()


def converted(plain: Path, target: Path, **packing: Any) -> Path:
    """Let mlx-lm convert a folder, from the config of published files."""
    build.edit_config(plain, build_gemma4.spell_as_published)
    with contextlib.redirect_stdout(io.StringIO()):
        if packing:
            return build.convert(plain, target, **packing)
        build.write_tokenizer(plain)
        mlx_lm.convert(str(plain), str(target))
    return target


@pytest.mark.parametrize("kind", ["31B", "26B-A4B", "E2B"])
def test_converted_by_mlx(kind, seed_for, judge, tmp_path):
    """By witness: against mlx-lm itself."""
    seed = seed_for("gemma4 mlx", kind)
    config = draw_config(seed, kind)
    model = build_gemma4.random_model(seed, **config)
    plain = build_gemma4.save(model, tmp_path / "plain", dtype="float32")
    tokens = build.prompts(seed, model.config.vocab_size)
    if not build_gemma4.settled(build_gemma4.truth(plain), tokens):
        tokens = tokens[:, :1]
    folder = converted(plain, tmp_path / "converted")
    theirs, _ = mlx_lm.load(str(folder))
    expected = np.array(theirs(mx.array(tokens)))
    for engine in ENGINES:
        found = Runner(engine, folder).logits(tokens)
        judge(engine, f"gemma4, {kind}, to mlx-lm", found, expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["31B", "26B-A4B", "E2B"])
def test_packed_by_mlx(kind, bits, seed_for, judge, tmp_path):
    """By witness: transformers on the values that MLX unpacks."""
    sizes = {
        "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 32,
        "global_head_dim": 32, "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    extra = {"hidden_size_per_layer_input": 64, "rms_norm_eps": 0.1} if kind == "E2B" else {}

    def make(number: int) -> Path:
        model = build_gemma4.random_model(number, **(KINDS[kind] | sizes | extra))
        plain = build_gemma4.save(model, tmp_path / f"plain{number}", dtype="bfloat16")
        config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
        folder = converted(plain, tmp_path / str(number), bits=bits, group_size=32)
        truths[folder] = unpacked(folder, config)
        return folder

    truths: dict[Path, Gemma4ForCausalLM] = {}
    for number in range(seed := seed_for("gemma4 packed", kind, bits), seed + TRIES):
        folder = make(number)
        tokens = build.prompts(number, truths[folder].config.vocab_size)
        if build_gemma4.settled(truths[folder], tokens):
            compare(Drawn(folder, tokens), truths[folder], f"gemma4, {kind}, packed", judge)
            return
    raise RuntimeError(f"no seed from {seed} on is far from a tie")


@pytest.mark.parametrize("spelled", ["language_model.model.", "model.language_model."])
def test_packed_in_the_multimodal_layout(spelled, seed_for, tmp_path):
    """By law: 4 bits, but for the MLP and the router; named under either prefix, to the bit."""
    seed = seed_for("gemma4 mixed", spelled)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    sizes |= {"head_dim": 32, "global_head_dim": 32}
    model = build_gemma4.random_model(seed, **(KINDS["26B-A4B"] | sizes))
    plain = build_gemma4.save(model, tmp_path / "plain", dtype="bfloat16")

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:
        wide = ".mlp." in path or path.endswith("router.proj")
        packing = {"bits": 8 if wide else 4, "group_size": 32}
        return packing if hasattr(module, "to_quantized") else False

    packing = {"bits": 4, "group_size": 32, "predicate": predicate}
    packed = converted(plain, tmp_path / "packed", **packing)
    config = json.loads((packed / "config.json").read_text(encoding="utf-8"))
    quantization = {
        name.replace("model.", spelled, 1): value for name, value in config["quantization"].items()
    }
    config = {key: value for key, value in config.items() if key not in build.SECTIONS}
    outer = {"model_type": "gemma4", "text_config": config, "quantization": quantization}
    folder = tmp_path / "wrapped"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    files = mx.load(str(packed / "model.safetensors"))
    renamed = {
        f"language_{name}".replace("_model.", "_model.model.", 1): files[name] for name in files
    }
    mx.save_safetensors(str(folder / "model.safetensors"), renamed, metadata={"format": "mlx"})
    opened = open_checkpoint(folder)
    assert opened.warnings == []
    assert opened.stored("model.layers.1.mlp.up_proj.weight").bits == 8
    assert opened.stored("model.layers.1.router.proj.weight").bits == 8
    assert opened.stored("model.layers.1.experts.up_proj.weight").bits == 4
    tokens = build.prompts(seed, 110)
    for engine in ENGINES:
        found = [Runner(engine, one).exact(tokens) for one in (packed, folder)]
        assert found[0].tobytes() == found[1].tobytes()


def unpacked(folder: Path, config: dict[str, Any]) -> Gemma4ForCausalLM:
    """Return transformers' model with what MLX unpacks of a folder in float32."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config, attn_implementation="eager")).eval()
    files: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        files |= mx.load(str(path))
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "rotary_emb" in name or name.endswith("embed_scale"):
                continue
            parts = [name]
            if name.endswith("gate_up_proj"):
                stem = name.replace("gate_up_proj", "switch_glu.{}.weight")
                parts = [stem.format(one) for one in ("gate_proj", "up_proj")]
            elif name.endswith("experts.down_proj"):
                parts = [name.replace("down_proj", "switch_glu.down_proj.weight")]
            found = [widened(files, part, value.shape[-1]) for part in parts]
            value.copy_(torch.from_numpy(np.concatenate(found, axis=1 if found[1:] else 0)))
    return model


def widened(files: dict[str, mx.array], name: str, columns: int) -> np.ndarray:
    weight, module = files[name], name.removesuffix(".weight")
    if f"{module}.scales" in files:
        scales, biases = files[f"{module}.scales"], files.get(f"{module}.biases")
        weight = build.unpacked(weight, scales, biases, columns=columns)
    return np.array(weight.astype(mx.float32))
