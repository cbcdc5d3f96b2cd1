"""Fusing into bases of every layout, with adapters drawn here. By law."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import fast, reference
from lockstep.parity.fusing.folder import fuse
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[2] / "witnesses"
BASES = [
    "gpt2/original", "gpt2/packed", "gpt2/variant", "models/minifloats_mixed", "models/affine_3_64",
    "models/untied_float32", "models/sliding_bfloat16", "gemma4/dense", "gemma4/effective",
    "gemma4/sparse", "qwen3_moe/fused", "qwen3_moe/packed", "qwen3_moe/separate",
]  # fmt: skip
ENDS = ("q_proj", "o_proj", "c_attn", "c_fc", "down_proj")
TOKENS = np.array([[3, 1, 4, 1, 5]])


def draw_adapter(base: Path, folder: Path, *, layer: str) -> Path:
    """Save a random adapter of PEFT for some projections of one layer."""
    rng, checkpoint, drawn = np.random.default_rng(7), open_checkpoint(base), {}
    for name in checkpoint.names:
        path, shape = name.removesuffix(".weight"), checkpoint.stored(name).shape
        if path.endswith(ENDS) and f".{layer}." in path and len(shape) == 2:
            start = f"base_model.model.{path}"
            a = rng.standard_normal((2, shape[1])) / shape[1] ** 0.5
            drawn[f"{start}.lora_A.weight"] = a.astype(np.float32)
            b = rng.standard_normal((shape[0], 2)) / 2
            drawn[f"{start}.lora_B.weight"] = b.astype(np.float32)
    assert drawn
    folder.mkdir()
    save_file(drawn, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@sampled(5, "qwen3_moe/fused-0")
@pytest.mark.parametrize("layer", ["0", "1"])
@pytest.mark.parametrize("name", BASES)
def test_every_layout_is_read_back(name, layer, tmp_path):
    """Also where the first layer, by which GPT-2's layout is told, is the only one that changed."""
    base = WITNESSES / name
    adapter = draw_adapter(base, tmp_path / "adapter", layer=layer)
    fuse(base, adapter, tmp_path / "fused")
    tuned = reference.load(base, adapter)
    expected, plain = tuned.forward(TOKENS), reference.load(base).forward(TOKENS)
    exact = all(
        open_checkpoint(tmp_path / "fused").stored(f"{path}.weight").dtype == "F32"
        for path in tuned.adapters.modules
    )
    bar = 2e-5 if exact else 4e-2
    found = [reference.load(tmp_path / "fused").forward(TOKENS)]
    found += [fast.load(tmp_path / "fused", backend=one).forward(TOKENS) for one in ("cpu", "mlx")]
    for logits in map(np.asarray, found):
        assert np.abs(logits - expected).max() < bar * expected.std()
    assert np.abs(plain - expected).max() > 3 * bar * expected.std()


def test_codes_with_bytes_for_scales_become_bfloat16(tmp_path):
    base = WITNESSES / "models/minifloats_mixed"
    made = fuse(base, draw_adapter(base, tmp_path / "a", layer="1"), tmp_path / "fused")
    before, after = open_checkpoint(base), open_checkpoint(tmp_path / "fused")
    kinds = {before.stored(f"{path}.weight").scale_dtype for path in made["fused"]}
    assert "U8" in kinds
    for path in made["fused"]:
        was = before.stored(f"{path}.weight").scale_dtype
        assert after.stored(f"{path}.weight").dtype == ("BF16" if was == "U8" else was)
