"""Fused models against those that peft and mlx-lm fuse, and read by both. By witness, live."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx.utils import tree_unflatten

from lockstep.parity.fusing.folder import fuse
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.peers.conftest import draw_config, draw_wide
from tests.witnesses import build, build_adapters, build_gpt2
from tests.witnesses.runners import Runner

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": build_adapters.ALL},
    "rslora": {"target_modules": ["k_proj", "down_proj"], "use_rslora": True},
    "dora": {"target_modules": build_adapters.ALL, "use_dora": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_peft_merges_alike(kind, seed_for, engine, judge, tmp_path):
    seed = seed_for("fuse", kind)
    base = build.save(build.random_model(seed, **draw_config(seed)), tmp_path / "base",
                      dtype="float32")  # fmt: skip
    config = {"r": 3, "lora_alpha": 4} | KINDS[kind]
    compare(build.truth(base), base, tmp_path, seed, config, engine, judge)


def test_peft_merges_gpt2_alike(seed_for, engine, judge, tmp_path):
    """Its files hold matrices as (inputs, outputs), and so do those that are written."""
    seed = seed_for("fuse gpt2")
    model = build_gpt2.random_model(seed, **build_gpt2.SMALL)
    model.save_pretrained(tmp_path / "base")
    targets = ["c_attn", "c_fc", "mlp.c_proj"]
    config = {"r": 2, "lora_alpha": 3, "target_modules": targets, "fan_in_fan_out": True}
    compare(model, tmp_path / "base", tmp_path, seed, config, engine, judge)


def compare(
    model: Any,
    base: Path,
    scratch: Path,
    seed: int,
    config: dict[str, Any],
    engine: str,
    judge: Any,
) -> None:
    tokens = build.prompts(seed, model.config.vocab_size)
    adapted = build_adapters.peft_adapter(model, scratch / "adapter", seed, **config)
    made = fuse(base, scratch / "adapter", scratch / "fused")
    merged = adapted.merge_and_unload()
    theirs = {name: value.detach().numpy() for name, value in merged.named_parameters()}
    ours = open_checkpoint(scratch / "fused")
    for path in made["fused"]:
        expected, found = theirs[f"{path}.weight"], np.asarray(ours.tensor(f"{path}.weight"))
        expected = expected.T if path.endswith(("c_attn", "c_fc", "c_proj")) else expected
        assert np.abs(found - expected).max() < 1e-5 * expected.std(), path
    logits = build.logits(merged, tokens)
    judge(engine, "fused", Runner(engine, scratch / "fused").logits(tokens), logits)
    judge("transformers", "fused", build.logits(build.truth(scratch / "fused"), tokens), logits)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_mlx_lm_fuses_alike(kind, seed_for, engine, judge, tmp_path):
    seed = seed_for("fuse mlx", kind)
    model = build.random_model(seed, **draw_wide(seed))
    base = build.save(model, tmp_path / "base", dtype="float32")
    adapter = mlx_adapter(base, tmp_path / "adapter", seed, kind)
    theirs = build_adapters.mlx_model(base, adapter)
    theirs.update_modules(
        tree_unflatten([(n, m.fuse()) for n, m in theirs.named_modules() if hasattr(m, "fuse")])
    )
    fuse(base, adapter, tmp_path / "fused")
    tokens = build.prompts(seed, 80)
    expected = build_adapters.mlx_logits(theirs, tokens)
    judge(engine, "fused as mlx-lm", Runner(engine, tmp_path / "fused").logits(tokens), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_mlx_lm_reads_a_packed_base_that_is_dense_in_parts(bits, seed_for, engine, judge, tmp_path):
    seed = seed_for("fuse packed", bits)
    model = build.random_model(seed, **draw_wide(seed))
    plain = build.save(model, tmp_path / "plain", dtype="bfloat16")
    base = build.convert(plain, tmp_path / "base", bits=bits, group_size=32)
    adapter = mlx_adapter(base, tmp_path / "adapter", seed, "lora", keys=["self_attn.v_proj"])
    assert fuse(base, adapter, tmp_path / "fused")["unpacked"]
    tokens = build.prompts(seed, 80)
    theirs = build_adapters.mlx_model(tmp_path / "fused")
    expected = build_adapters.mlx_logits(theirs, tokens)
    judge(engine, "fused in parts", Runner(engine, tmp_path / "fused").logits(tokens), expected)


def test_a_packed_gpt2_of_mlx_lm_stays_one(seed_for, engine, judge, tmp_path):
    """mlx-lm spells its names otherwise than transformers, and turns its matrices."""
    seed = seed_for("fuse packed gpt2")
    model = build_gpt2.random_model(seed, **build_gpt2.PACKABLE)
    model.save_pretrained(tmp_path / "plain")
    plain = build_gpt2.as_on_the_hub(tmp_path / "plain")  # mlx-lm reads no other form
    base = build.convert(plain, tmp_path / "base", bits=4, group_size=32)
    adapter = mlx_adapter(base, tmp_path / "adapter", seed, "lora", keys=["attn.c_attn"])
    assert fuse(base, adapter, tmp_path / "fused")["unpacked"]
    tokens = build.prompts(seed, model.config.vocab_size)
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(tmp_path / "fused"), tokens)
    judge(engine, "fused gpt2", Runner(engine, tmp_path / "fused").logits(tokens), expected)


def mlx_adapter(base: Path, folder: Path, seed: int, kind: str, **more: Any) -> Path:
    inner = {"rank": 3, "scale": 4.0, "dropout": 0.0} | more
    arguments = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": inner}
    return build_adapters.mlx_adapter(base, folder, seed, **arguments)
