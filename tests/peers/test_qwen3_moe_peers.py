"""Qwen3-MoE against transformers in float32, and against mlx-lm. By witness, live."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from tests.peers.conftest import Drawn
from tests.witnesses import build, build_qwen3_moe
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

HIDDEN = "mlp.act_fn"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
KINDS: dict[str, dict[str, Any]] = {
    "normalised": {},
    "not normalised": {"norm_topk_prob": False},
    "every other layer": {"decoder_sparse_step": 2, "mlp_only_layers": []},
    "all layers": {"mlp_only_layers": []},
    "biased": {"attention_bias": True},
    "sliding": {"use_sliding_window": True, "sliding_window": 7},
    "yarn": {"rope_parameters": YARN | {"rope_theta": 1e4}},
    "all experts": {"num_experts": 4, "num_experts_per_tok": 4},
    "one expert": {"num_experts_per_tok": 1},
}
TRIES = 40


def draw_config(seed: int) -> dict[str, Any]:
    """Draw the sizes of a small model."""
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(2, 4))
    return build_qwen3_moe.SMALL | {
        "vocab_size": int(rng.integers(80, 200)),
        "hidden_size": 8 * int(rng.integers(3, 7)),
        "intermediate_size": 8 * int(rng.integers(4, 9)),
        "moe_intermediate_size": 4 * int(rng.integers(3, 9)),
        "num_attention_heads": groups * int(rng.integers(2, 4)),
        "num_key_value_heads": groups,
        "head_dim": 2 * int(rng.integers(4, 10)),
        "num_experts": int(rng.integers(5, 12)),
        "num_experts_per_tok": int(rng.integers(2, 5)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-3])),
        "rope_theta": float(rng.choice([1e4, 1e6])),
    }


def settled(seed: int, make: Callable[[int], Path]) -> tuple[Drawn, Qwen3MoeForCausalLM]:
    """Make checkpoints from one seed after another until no router is near a tie."""
    for number in range(seed, seed + TRIES):
        folder = make(number)
        model = build_qwen3_moe.truth(folder)
        tokens = build.prompts(number, model.config.vocab_size)
        if build_qwen3_moe.settled(model, tokens):
            return Drawn(folder, tokens), model
    raise RuntimeError(f"no seed from {seed} on is far from a tie")


def compare(drawn: Drawn, model: Qwen3MoeForCausalLM, row: str, judge) -> None:
    """Hold every engine against transformers: logits, cached, unequal, greedy, modules."""
    tokens, lengths = drawn.tokens, [build.PROMPT, build.SHORT]
    expected = build.logits(model, tokens)
    ids, seen = build.greedy(model, tokens)
    unequal_ids, unequal_seen = build.greedy_unequal(model, tokens)
    modules = build_qwen3_moe.activations(model, tokens)
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


@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_by_transformers(kind, fused, storage, seed_for, judge, tmp_path):
    seed = seed_for("moe", kind, fused, storage)
    tied = {"tie_word_embeddings": bool(seed % 2)}

    def make(number: int) -> Path:
        model = build_qwen3_moe.random_model(number, **(draw_config(number) | tied | KINDS[kind]))
        return build_qwen3_moe.save(model, tmp_path / str(number), dtype=storage, fused=fused)

    drawn, model = settled(seed, make)
    compare(drawn, model, f"qwen3_moe, {kind}", judge)


def test_truth_is_what_transformers_loads(storage, seed_for, tmp_path):
    """By law: our own reading of the three forms, in the builder, is that of transformers."""
    seed = seed_for("moe truth", storage)
    model = build_qwen3_moe.random_model(seed, **draw_config(seed))
    tokens = build.prompts(seed, model.config.vocab_size)
    for fused in (False, True):
        folder = build_qwen3_moe.save(model, tmp_path / str(fused), dtype=storage, fused=fused)
        loaded = Qwen3MoeForCausalLM.from_pretrained(
            folder, dtype=build.DTYPES["float32"], attn_implementation="eager"
        ).eval()
        own = build_qwen3_moe.truth(folder)
        read, known = own.state_dict(), loaded.state_dict()
        assert read.keys() == known.keys()
        assert all(torch.equal(read[name], known[name]) for name in known)
        # A product's last bit depends on where its matrix lies in memory: let both use one.
        loaded.load_state_dict(read, assign=True)
        assert (build.logits(loaded, tokens) == build.logits(own, tokens)).all()


def converted(seed: int, storage: str, folder: Path, **packing: Any) -> Path:
    """Let mlx-lm convert a fresh model, from the config of published files."""
    sizes = build_qwen3_moe.PACKABLE if packing else draw_config(seed)
    model = build_qwen3_moe.random_model(seed, **sizes)
    plain = build_qwen3_moe.save(model, folder / f"plain{seed}", dtype=storage)
    build.edit_config(plain, build_qwen3_moe.spell_as_before_5)
    target = folder / f"converted{seed}"
    with contextlib.redirect_stdout(io.StringIO()):
        if packing:
            return build.convert(plain, target, **packing)
        build.write_tokenizer(plain)
        mlx_lm.convert(str(plain), str(target))
    return target


def compare_with_mlx(drawn: Drawn, judge) -> None:
    model, _ = mlx_lm.load(str(drawn.folder))
    model.set_dtype(mx.float32)
    theirs = np.array(model(mx.array(drawn.tokens)))
    for engine in ENGINES:
        judge(
            engine,
            "qwen3_moe, to mlx-lm",
            Runner(engine, drawn.folder).logits(drawn.tokens),
            theirs,
        )


def test_converted_by_mlx(storage, seed_for, judge, tmp_path):
    seed = seed_for("moe mlx", storage)
    drawn, model = settled(seed, lambda number: converted(number, storage, tmp_path))
    compare(drawn, model, "qwen3_moe, mlx-lm", judge)
    compare_with_mlx(drawn, judge)


@pytest.mark.parametrize(
    "bits, group_size", [(2, 32), (3, 64), (4, 32), (4, 64), (5, 32), (6, 64), (8, 32)]
)
def test_packed_by_mlx(bits, group_size, storage, seed_for, judge, tmp_path):
    seed = seed_for("moe packed", bits, group_size, storage)
    packing = {"bits": bits, "group_size": group_size}
    drawn, model = settled(seed, lambda number: converted(number, storage, tmp_path, **packing))
    compare(drawn, model, "qwen3_moe, packed", judge)
    compare_with_mlx(drawn, judge)


@pytest.mark.parametrize("sizes", build.MINIFLOATS, ids=build.MINIFLOATS.get)
def test_tiny_floats_by_mlx(sizes, storage, seed_for, judge, tmp_path):
    """mlx-lm keeps the router in 8 affine bits, beside experts in mxfp4, mxfp8 or nvfp4."""
    mode = build.MINIFLOATS[sizes]
    seed = seed_for("moe tiny floats", mode, storage)
    packing = {"bits": sizes[0], "group_size": sizes[1], "mode": mode}
    drawn, model = settled(seed, lambda number: converted(number, storage, tmp_path, **packing))
    checkpoint = Runner("reference", drawn.folder).model.checkpoint
    modes = {checkpoint.stored(name).mode for name in checkpoint.names}
    assert modes == {None, "affine", mode} and not checkpoint.warnings
    compare(drawn, model, f"qwen3_moe, {mode}", judge)
    compare_with_mlx(drawn, judge)


def test_mixed_packings(storage, seed_for, judge, tmp_path):
    seed = seed_for("moe mixed", storage)

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:
        wide = path.endswith(("down_proj", "mlp.gate"))
        fits = hasattr(module, "to_quantized")
        return {"bits": 8 if wide else 3, "group_size": 32} if fits else False

    packing = {"bits": 4, "group_size": 64, "predicate": predicate}
    drawn, model = settled(seed, lambda number: converted(number, storage, tmp_path, **packing))
    compare(drawn, model, "qwen3_moe, mixed", judge)
