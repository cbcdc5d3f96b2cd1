"""Gemma 4 with towers for images and sound, saved by transformers, and adapters of it. By witness.

The text goes through transformers' whole model, and here through the text part alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Gemma4Config, Gemma4ForConditionalGeneration

from lockstep.parity.fusing.folder import fuse
from tests.peers.test_adapter_peers import with_adapter
from tests.witnesses import build, build_adapters, build_gemma4
from tests.witnesses.judge import error
from tests.witnesses.runners import ENGINES, Runner

# A layer's own input may be nearly shut for a token, which blows up the noise of either side.
STEADY = {"rms_norm_eps": 0.1, "hidden_size": 64}
BUILDS = {
    "31B": build_gemma4.DENSE | STEADY,
    "26B-A4B": build_gemma4.SPARSE | STEADY,
    "E2B": build_gemma4.SMALL_BUILD | STEADY,
}
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION = TOWER | {"intermediate_size": 16, "num_key_value_heads": 2, "head_dim": 8}
# Ids that stand for images and sound, from the end of the vocabulary.
SPECIAL = ("image", "video", "audio", "boi", "eoi", "boa")
WORDS = build_gemma4.DENSE["vocab_size"] - len(SPECIAL)
TEXT = r".*language_model\.layers.*\."  # the towers have projections of the same names


def saved(which: str, seed: int, folder: Path) -> Gemma4ForConditionalGeneration:
    """Save a whole model; return it as transformers loads it."""
    ids = {f"{name}_token_id": WORDS + number for number, name in enumerate(SPECIAL)}
    config = Gemma4Config(
        text_config=BUILDS[which], vision_config=VISION, audio_config=TOWER, **ids
    )
    model = Gemma4ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    text = model.model.language_model
    with torch.no_grad():
        for name, value in [*text.named_parameters(), *text.named_buffers()]:
            if "rotary_emb" not in name and not name.endswith("embed_scale"):
                noise = torch.randn(value.shape, generator=generator)
                value.copy_(build_gemma4.spread(name, noise))
    model.save_pretrained(folder)
    return Gemma4ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Return transformers' logits; without a mask it would look for images."""
    seen = torch.ones(tokens.shape, dtype=torch.long)
    return build.logits(model, tokens, attention_mask=seen)


@pytest.mark.parametrize("which", BUILDS)
def test_as_transformers_saves_it(which, seed_for, judge, tmp_path):
    seed = seed_for("multimodal gemma4", which)
    model, tokens = saved(which, seed, tmp_path), build.prompts(seed, WORDS)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert any("vision_tower" in name for name in names)
    assert any("audio_tower" in name for name in names)
    expected = logits(model, tokens)
    for engine in ENGINES:
        runner = Runner(engine, tmp_path)
        judge(engine, f"gemma4, {which}, saved whole", runner.logits(tokens), expected)
        found = runner.chunked(tokens, [7, 1, 31, 1])
        judge(engine, f"gemma4, {which}, saved whole, cached", found, expected)


ADAPTED: dict[str, dict[str, Any]] = {
    "31B": {"target_modules": TEXT + "(q_proj|up_proj)", "use_dora": True},
    "26B-A4B": {
        "target_modules": TEXT + "(q_proj|router.proj)",
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    },
    "E2B": {
        "target_modules": TEXT + "(o_proj|per_layer_input_gate)",
        "modules_to_save": ["language_model.norm"],
    },
}


@pytest.mark.parametrize("which", BUILDS)
def test_adapters_of_the_whole_model(which, seed_for, judge, tmp_path):
    """PEFT calls its layers `model.language_model.layers`; at run time, and fused."""
    seed = seed_for("multimodal gemma4, adapted", which)
    base, adapter, target = tmp_path / "base", tmp_path / "adapter", tmp_path / "fused"
    model, tokens = saved(which, seed, base), build.prompts(seed, WORDS)[:, :20]
    plain = logits(model, tokens)
    options = {"r": 2, "lora_alpha": 3} | ADAPTED[which]
    adapted = build_adapters.peft_adapter(model, adapter, seed, **options)
    names = load_file(adapter / "adapter_model.safetensors").keys()
    assert all(name.startswith("base_model.model.model.language_model.") for name in names)
    expected = logits(adapted, tokens)
    assert error(expected, plain) > 0.1
    fuse(base, adapter, target)
    for engine in ENGINES:
        found = with_adapter(engine, base, adapter).logits(tokens)
        judge(engine, f"gemma4, {which}, adapter of the whole", found, expected)
        found = Runner(engine, target).logits(tokens)
        judge(engine, f"gemma4, {which}, fused", found, expected)
