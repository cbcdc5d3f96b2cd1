"""Fresh adapters against peft on transformers and against mlx-lm, in float32. By witness, live."""

import contextlib
import io
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.dora import DoRALinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from tests.peers.conftest import draw_config, draw_wide
from tests.witnesses import build, build_adapters, build_llama, build_qwen3_moe
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import Runner

FAMILIES = ("qwen3", "llama with biases", "mistral with a window")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": build_adapters.ALL},
    "rslora": {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True},
    "patterns": {
        "target_modules": build_adapters.ALL,
        "rank_pattern": {"q_proj": 1, r"layers\.\d+\.mlp\.up_proj": 5},
        "alpha_pattern": {"0.self_attn.o_proj": 3, "^model.layers.1.mlp.down_proj": 4},
    },
    "regular expression": {"target_modules": r".*\.1\..*(q_proj|gate_proj)"},
    "some layers": {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1]},
    "dora": {"target_modules": build_adapters.ALL, "use_dora": True},
}


def with_adapter(engine: str, base: Path, adapter: Path) -> Runner:
    runner = Runner(engine, base)
    runner.model = runner.model.with_adapter(adapter)
    return runner


def drawn_base(family: str, seed: int, storage: str, folder: Path) -> Path:
    config = draw_config(seed)
    if family == "qwen3":
        return build.save(build.random_model(seed, **config), folder, dtype=storage)
    keys = build_llama.config(family, "llama3")
    return build_llama.save(build_llama.random_model(seed, keys), folder, dtype=storage)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_peft(family, kind, seed_for, engine, judge, tmp_path):
    seed = seed_for("peft", family, kind)
    storage = ("float32", "float16", "bfloat16")[seed % 3]
    base = drawn_base(family, seed, storage, tmp_path / "base")
    config = {"r": 1 + seed % 4, "lora_alpha": 1 + seed % 4} | KINDS[kind]
    model = build.truth(base)
    tokens = build.prompts(seed, model.config.vocab_size)
    adapted = build_adapters.peft_adapter(model, tmp_path / "adapter", seed, **config)
    runner = with_adapter(engine, base, tmp_path / "adapter")
    judge(engine, f"peft {kind}", runner.logits(tokens), build.logits(adapted, tokens))
    ids, seen = build.greedy(adapted, tokens)
    same_tokens(runner.greedy(tokens, build.GREEDY)[0], ids, seen)


@pytest.mark.parametrize("kind", ["plain", "dora"])
def test_unequal_prompts_and_a_cache(kind, seed_for, engine, judge, tmp_path):
    """Rows of a batch and chunks of a prompt give what peft gives for each by itself."""
    seed = seed_for("unequal", kind)
    base = drawn_base("qwen3", seed, "float32", tmp_path / "base")
    model = build.truth(base)
    tokens = build.prompts(seed, model.config.vocab_size)
    config = {"r": 2, "lora_alpha": 3} | KINDS[kind]
    adapted = build_adapters.peft_adapter(model, tmp_path / "adapter", seed, **config)
    runner = with_adapter(engine, base, tmp_path / "adapter")
    alone = build.logits(adapted, tokens[1:, : build.SHORT])
    lengths = np.array([build.PROMPT, build.SHORT])
    found = runner.logits(tokens, lengths=lengths)[1:, : build.SHORT]
    judge(engine, f"peft {kind}, unequal", found, alone)
    found = runner.chunked(tokens, [17, 1, 1, 21])
    judge(engine, f"peft {kind}, cached", found, build.logits(adapted, tokens))


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_mlx_lm(bits, kind, seed_for, engine, judge, tmp_path):
    seed = seed_for("mlx", bits, kind)
    base = mlx_base(bits, seed, tmp_path)
    adapter = mlx_adapter(base, tmp_path / "adapter", seed, kind)
    tokens = build.prompts(seed, 80)
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(base, adapter), tokens)
    found = with_adapter(engine, base, adapter).logits(tokens)
    judge(engine, f"mlx-lm {kind}", found, expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_a_packed_base_is_its_dequantised_one(bits, seed_for, engine, judge, tmp_path):
    """Against mlx-lm's LoRA on the dense values of the codes, at every width."""
    seed = seed_for("packed", bits)
    base = mlx_base(bits, seed, tmp_path)
    adapter = mlx_adapter(base, tmp_path / "adapter", seed, "lora")
    tokens = build.prompts(seed, 80)
    dense = build_adapters.unpacked(build_adapters.mlx_model(base))
    expected = build_adapters.mlx_logits(onto(dense, adapter, "lora"), tokens)
    found = with_adapter(engine, base, adapter).logits(tokens)
    judge(engine, "packed base", found, expected)


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_dora_where_mlx_lm_cannot(bits, seed_for, engine, judge, tmp_path):
    """mlx-lm takes columns * (32 // bits) for the inputs of a packed weight, too few here.

    The adapter is that of the dequantised base, which mlx-lm runs rightly.
    """
    seed = seed_for("dora", bits)
    base, plain = mlx_base(bits, seed, tmp_path), tmp_path / "plain"
    packed = build_adapters.mlx_model(base).layers[0].self_attn.q_proj
    inputs = packed.scales.shape[1] * packed.group_size
    assert DoRALinear.from_base(packed).lora_a.shape[0] < inputs
    adapter = mlx_adapter(plain, tmp_path / "adapter", seed, "dora")
    tokens = build.prompts(seed, 80)
    dense = build_adapters.unpacked(build_adapters.mlx_model(base))
    expected = build_adapters.mlx_logits(onto(dense, adapter, "dora"), tokens)
    found = with_adapter(engine, base, adapter).logits(tokens)
    judge(engine, "dora where mlx-lm cannot", found, expected)


def test_experts_stay_and_attention_is_adapted(seed_for, engine, judge, tmp_path):
    seed = seed_for("moe")
    model = build_qwen3_moe.random_model(seed, **build_qwen3_moe.SMALL)
    folder = build_qwen3_moe.save(model, tmp_path / "base", dtype="float32")
    build.edit_config(folder, build_qwen3_moe.spell_as_before_5)
    tokens = build.prompts(seed, model.config.vocab_size)[:1, :9]
    arguments = parameters("lora", keys=["self_attn.v_proj", "self_attn.o_proj"])
    adapter = build_adapters.mlx_adapter(folder, tmp_path / "adapter", seed, **arguments)
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(folder, adapter), tokens)
    judge(engine, "moe", with_adapter(engine, folder, adapter).logits(tokens), expected)


def mlx_base(bits: int | None, seed: int, scratch: Path, config: Any = None) -> Path:
    """Make a checkpoint with mlx-lm, and keep the dense one that it is of as `plain`."""
    model = build.random_model(seed, **(config or draw_wide(seed)))
    plain = build.save(model, scratch / "plain", dtype="bfloat16")
    if bits is None:
        return plain
    with contextlib.redirect_stdout(io.StringIO()):
        return build.convert(plain, scratch / "packed", bits=bits, group_size=32)


def parameters(kind: str, **more: Any) -> dict[str, Any]:
    inner = {"rank": 3, "scale": 4.0, "dropout": 0.0} | more
    return {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": inner}


def mlx_adapter(base: Path, folder: Path, seed: int, kind: str) -> Path:
    return build_adapters.mlx_adapter(base, folder, seed, **parameters(kind))


def onto(model: Any, adapter: Path, kind: str) -> Any:
    """Put a stored adapter on an mlx-lm model that is in memory."""
    arguments = parameters(kind)
    inner, layers = arguments["lora_parameters"], arguments["num_layers"]
    linear_to_lora_layers(model, layers, inner, use_dora=kind == "dora")
    trained = mx.load(str(adapter / "adapters.safetensors"))
    model.load_weights(list(trained.items()), strict=False)
    return model
