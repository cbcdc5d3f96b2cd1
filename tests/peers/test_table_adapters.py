"""Adapters of embeddings, heads and experts against peft and mlx-lm, in float32. By witness."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.parity.fusing.folder import fuse
from tests.peers.conftest import draw_config, draw_wide
from tests.peers.test_adapter_peers import mlx_base, parameters, with_adapter
from tests.witnesses import (
    build,
    build_adapters,
    build_gemma4,
    build_gpt2,
    build_qwen3_moe,
    gguf_files,
)
from tests.witnesses.judge import error, same_tokens
from tests.witnesses.runners import Runner

KINDS: dict[str, dict[str, Any]] = {
    "embedding": {"target_modules": ["embed_tokens"]},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "both": {"target_modules": ["lm_head", "embed_tokens", "v_proj"]},
    "both by rslora": {"target_modules": ["lm_head", "embed_tokens"], "use_rslora": True},
    "head by dora": {"target_modules": ["lm_head", "up_proj"], "use_dora": True},
    "saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "saved both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "saved norms": {"target_modules": ["q_proj"], "modules_to_save": ["norm", "q_norm"]},
    "saved head over an adapted table": {
        "target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"],
    },
}  # fmt: skip
TIES = {
    "embedding": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "saved": {
        "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
}  # fmt: skip


def compare(
    engine: str, base: Path, adapter: Path, model: Any, judge: Any, tokens: np.ndarray, kind: str
) -> None:
    runner = with_adapter(engine, base, adapter)
    judge(engine, kind, runner.logits(tokens), build.logits(model, tokens))
    ids, seen = build.greedy(model, tokens)
    same_tokens(runner.greedy(tokens, build.GREEDY)[0], ids, seen)
    cut = tokens.shape[1] // 2
    found = runner.chunked(tokens, [cut, 1, tokens.shape[1] - cut - 1])
    judge(engine, f"{kind}, cached", found, build.logits(model, tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_peft_on_tables(kind, tied, seed_for, engine, judge, tmp_path):
    seed = seed_for("tables", kind, tied)
    storage = ("float32", "float32", "float16", "bfloat16")[seed % 4]
    config = draw_config(seed) | {"tie_word_embeddings": tied}
    base = build.save(build.random_model(seed, **config), tmp_path / "base", dtype=storage)
    model, options = build.truth(base), {"r": 1 + seed % 4, "lora_alpha": 1 + seed % 4}
    tokens = build.prompts(seed, model.config.vocab_size)
    adapted = build_adapters.peft_adapter(model, tmp_path / "a", seed, **(options | KINDS[kind]))
    compare(engine, base, tmp_path / "a", adapted, judge, tokens, f"peft {kind}")
    if storage == "float32":
        made = fuse(base, tmp_path / "a", tmp_path / "fused")
        assert made["untied"] == (tied and kind not in ("saved norms",))
        found = Runner(engine, tmp_path / "fused").logits(tokens)
        judge(engine, f"peft {kind}, fused", found, build.logits(adapted, tokens))
        theirs = build.logits(build.truth(tmp_path / "fused"), tokens)
        judge("transformers", f"peft {kind}, fused", theirs, build.logits(adapted, tokens))


@pytest.mark.parametrize("kind", TIES)
def test_peft_that_keeps_the_tie(kind, seed_for, engine, judge, tmp_path):
    seed = seed_for("ties", kind)
    config = draw_config(seed) | {"tie_word_embeddings": True}
    base = build.save(build.random_model(seed, **config), tmp_path / "base", dtype="float32")
    model, options = build.truth(base), {"r": 2, "lora_alpha": 3} | TIES[kind]
    tokens = build.prompts(seed, model.config.vocab_size)
    adapted = build_adapters.peft_adapter(model, tmp_path / "a", seed, **options)
    compare(engine, base, tmp_path / "a", adapted, judge, tokens, f"peft, tied {kind}")


@pytest.mark.parametrize("module", ["wte", "wpe", "lm_head"])
def test_peft_on_gpt2(module, seed_for, engine, judge, tmp_path):
    seed = seed_for("gpt2", module)
    model = build_gpt2.random_model(seed, **build_gpt2.SMALL)
    model.save_pretrained(tmp_path / "base")
    tokens = build.prompts(seed, model.config.vocab_size)[:, :20]
    options = {"r": 2, "lora_alpha": 3, "target_modules": [module, "c_attn"]}
    options |= {"fan_in_fan_out": True}
    adapted = build_adapters.peft_adapter(model, tmp_path / "a", seed, **options)
    runner = with_adapter(engine, tmp_path / "base", tmp_path / "a")
    judge(engine, f"peft gpt2 {module}", runner.logits(tokens), build.logits(adapted, tokens))


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_mlx_lm_on_tables(bits, tied, seed_for, engine, judge, tmp_path):
    """A tied head multiplies by the table that the embedding learned, a head apart has its own."""
    seed = seed_for("mlx tables", bits, tied)
    config = draw_wide(seed) | {"tie_word_embeddings": tied}
    base = mlx_base(bits, seed, tmp_path, config)
    keys = ["model.embed_tokens", "self_attn.q_proj"] + ([] if tied else ["lm_head"])
    adapter = build_adapters.mlx_adapter(
        base, tmp_path / "a", seed, **parameters("lora", keys=keys)
    )
    tokens = build.prompts(seed, 80)
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(base, adapter), tokens)
    judge(engine, "mlx-lm tables", with_adapter(engine, base, adapter).logits(tokens), expected)


def moe_base(
    seed: int, folder: Path, *, fused: bool, **config: Any
) -> tuple[Path, Any, np.ndarray]:
    """Make a checkpoint whose router is near no tie, also with the adapter of `seed`."""
    keys = build_qwen3_moe.SMALL | config
    model = build_qwen3_moe.random_model(seed, **keys)
    base = build_qwen3_moe.save(model, folder, dtype="float32", fused=fused)
    build.edit_config(base, build_qwen3_moe.spell_as_before_5)
    return base, model, build.prompts(seed, model.config.vocab_size)[:, :12]


PARAMETERS = {
    "both stacks": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "gate and up": ["mlp.experts.gate_up_proj"],
    "down of one layer": ["layers.1.mlp.experts.down_proj"],
    "router": ["mlp.gate.weight", "mlp.experts.down_proj"],
}


@pytest.mark.parametrize("width", [24, 32])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_peft_on_experts(kind, width, seed_for, engine, judge, tmp_path):
    """Also where an expert is as wide as the stream, and only the rows tell gate and up apart."""
    for attempt in range(8):
        seed = seed_for("experts", kind, width, attempt)
        folder = tmp_path / str(attempt)
        config = {"moe_intermediate_size": width}
        base, model, tokens = moe_base(seed, folder / "base", fused=bool(seed % 2), **config)
        options = {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj"]}
        options |= {"target_parameters": PARAMETERS[kind]}
        adapted = build_adapters.peft_adapter(model, folder / "a", seed, **options)
        if settled(adapted, tokens):
            break
    runner = with_adapter(engine, base, folder / "a")
    expected = build.logits(adapted, tokens)
    judge(engine, f"peft experts, {kind}", runner.logits(tokens), expected)
    fuse(base, folder / "a", folder / "fused")
    found = Runner(engine, folder / "fused").logits(tokens)
    judge(engine, f"peft experts, {kind}, fused", found, expected)


def settled(adapted: Any, tokens: np.ndarray) -> bool:
    """Say whether no router is near a tie: beyond one, right engines choose other experts."""
    gaps = []

    def listen(module: Any, args: Any, output: Any) -> None:
        ranked = output[0].float().sort(dim=-1, descending=True).values
        count = adapted.config.num_experts_per_tok
        gaps.append(float((ranked[:, count - 1] - ranked[:, count]).min()))

    names = ("mlp.gate",)
    hooks = [
        m.register_forward_hook(listen) for n, m in adapted.named_modules() if n.endswith(names)
    ]
    build.logits(adapted, tokens)
    for hook in hooks:
        hook.remove()
    assert gaps
    return min(gaps) > build_qwen3_moe.CLEAR


@pytest.mark.parametrize("form", ["plain", "packed"])
@pytest.mark.parametrize("keys", [None, ["mlp.switch_mlp.up_proj", "mlp.switch_mlp.down_proj"]])
def test_mlx_lm_on_experts(keys, form, seed_for, engine, judge, tmp_path):
    """Without keys, mlx-lm's command adapts all that it finds in a layer: the router too."""
    for attempt in range(8):
        seed, folder = seed_for("mlx experts", keys, form, attempt), tmp_path / str(attempt)
        config = build_qwen3_moe.PACKABLE if form == "packed" else {}
        base, _, tokens = moe_base(seed, folder / "base", fused=False, **config)
        if form == "packed":
            base = build.convert(base, folder / "packed", bits=4, group_size=32)
        arguments = parameters("lora", **({} if keys is None else {"keys": keys}))
        adapter = build_adapters.mlx_adapter(base, folder / "a", seed, **arguments)
        float64 = with_adapter("reference", base, adapter)
        if router_gap(float64, tokens) > build_qwen3_moe.CLEAR:
            break
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(base, adapter), tokens)
    found = with_adapter(engine, base, adapter).logits(tokens)
    judge(engine, f"mlx-lm experts, {form}", found, expected)
    if form == "plain":
        fuse(base, adapter, folder / "fused")
        found = Runner(engine, folder / "fused").logits(tokens)
        judge(engine, "mlx-lm experts, fused", found, expected)


def router_gap(runner: Any, tokens: np.ndarray) -> float:
    """Return the least distance of the last expert that is chosen and the next."""
    config, gaps = runner.model.config, []
    count = getattr(config, "num_experts_per_tok", None) or config.top_k_experts
    for name, value in runner.taps(tokens).items():
        if name.endswith(("mlp.gate", "router.proj")):
            ranked = -np.sort(-value, axis=-1)
            gaps.append((ranked[..., count - 1] - ranked[..., count]).min())
    return float(min(gaps))


def test_one_adapter_an_expert_as_older_files_have_it(seed_for, engine, judge, tmp_path):
    """The stacks' adapter cut into one for each expert is the same adapter. By law, and by peft."""
    for attempt in range(8):
        seed, folder = seed_for("older", attempt), tmp_path / str(attempt)
        base, model, tokens = moe_base(seed, folder / "base", fused=False)
        options = {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj"]}
        options |= {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
        adapted = build_adapters.peft_adapter(model, folder / "a", seed, **options)
        if settled(adapted, tokens):
            break
    older = build_adapters.one_by_one(folder / "a", folder / "older", model.config.num_experts)
    found = with_adapter(engine, base, older).logits(tokens)
    judge(engine, "peft, one adapter an expert", found, build.logits(adapted, tokens))


GEMMA = {
    "experts": (build_gemma4.SPARSE, {
        "target_modules": ["q_proj", "embed_tokens"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    }),
    "effective": (build_gemma4.SMALL_BUILD | {"rms_norm_eps": 0.1, "hidden_size": 64}, {
        "target_modules": ["embed_tokens_per_layer", "per_layer_model_projection", "o_proj"],
    }),
}  # fmt: skip


@pytest.mark.parametrize("kind", GEMMA)
def test_peft_on_gemma4(kind, seed_for, engine, judge, tmp_path):
    """What the adapter adds to a table is scaled with the table."""
    config, options = GEMMA[kind]
    for attempt in range(20):
        seed, folder = seed_for("gemma", kind, attempt), tmp_path / str(attempt)
        model = build_gemma4.random_model(seed, **config)
        base = build_gemma4.save(model, folder / "base", dtype="float32")
        tokens = build.prompts(seed, model.config.vocab_size)[:1, :20]
        options = {"r": 2, "lora_alpha": 3} | options
        adapted = build_adapters.peft_adapter(model, folder / "a", seed, **options)
        runner = with_adapter(engine, base, folder / "a")
        if kind != "experts" or router_gap(runner, tokens) > build_gemma4.CLEAR:
            break
    judge(engine, f"peft gemma4, {kind}", runner.logits(tokens), build.logits(adapted, tokens))


@pytest.mark.parametrize("kind", ["experts", "effective"])
def test_mlx_lm_on_gemma4(kind, seed_for, engine, judge, tmp_path):
    """All that mlx-lm's command adapts by itself."""
    config = GEMMA[kind][0]
    for attempt in range(20):
        seed, folder = seed_for("mlx gemma", kind, attempt), tmp_path / str(attempt)
        model = build_gemma4.random_model(seed, **config)
        base = build_gemma4.save(model, folder / "base", dtype="float32")
        build.edit_config(base, build_gemma4.spell_as_published)
        adapter = build_adapters.mlx_adapter(base, folder / "a", seed, **parameters("lora"))
        tokens = build.prompts(seed, model.config.vocab_size)[:1, :20]
        runner = with_adapter(engine, base, adapter)
        if kind != "experts" or router_gap(runner, tokens) > build_gemma4.CLEAR:
            break
    expected = build_adapters.mlx_logits(build_adapters.mlx_model(base, adapter), tokens)
    judge(engine, f"mlx-lm gemma4, {kind}", runner.logits(tokens), expected)


@pytest.mark.parametrize("format", ["Q8_0", "IQ4_NL", "Q4_0", "F16"])
def test_over_a_gguf_file(format, tied, seed_for, engine, judge, tmp_path):
    """A file of llama.cpp has Hugging Face names here, and takes the adapter of the folder."""
    seed = seed_for("gguf adapter", format, tied)
    config = build.SMALL | {"head_dim": 32, "tie_word_embeddings": tied}
    model = build.random_model(seed, **config)
    base = tmp_path / "base.gguf"
    gguf_files.loaded(model, gguf_files.write_gguf(base, model, format, seed=seed))
    options = {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "lm_head", "embed_tokens"]}
    tokens = build.prompts(seed, model.config.vocab_size)
    adapted = build_adapters.peft_adapter(model, tmp_path / "a", seed, **options)
    found = with_adapter(engine, base, tmp_path / "a").logits(tokens)
    judge(engine, f"over gguf {format}", found, build.logits(adapted, tokens))


@pytest.mark.parametrize("format", ["Q8_0", "MXFP4"])
def test_experts_over_a_gguf_file(format, seed_for, engine, judge, tmp_path):
    for attempt in range(8):
        seed = seed_for("gguf experts", format, attempt)
        config = build_qwen3_moe.PACKABLE | {"mlp_only_layers": []}
        model, base = build_qwen3_moe.random_model(seed, **config), tmp_path / f"{attempt}.gguf"
        held = gguf_files.write_gguf(base, model, lambda name: router(name) or format, seed=seed)
        gguf_files.loaded(model, held)
        tokens = build.prompts(seed, model.config.vocab_size)[:, :12]
        options = {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj"]}
        options |= {"target_parameters": PARAMETERS["both stacks"]}
        adapted = build_adapters.peft_adapter(model, tmp_path / f"a{attempt}", seed, **options)
        if settled(adapted, tokens):
            break
    found = with_adapter(engine, base, tmp_path / f"a{attempt}").logits(tokens)
    judge(engine, f"experts over gguf {format}", found, build.logits(adapted, tokens))


def router(name: str) -> str | None:
    """llama.cpp keeps routers in float32."""
    return "F32" if name.endswith("mlp.gate.weight") else None


def test_swapped_without_reading_the_base_again(seed_for, engine, judge, tmp_path, monkeypatch):
    """Of two adapters and none, each in its turn, on one base in memory."""
    seed = seed_for("swapped")
    base = build.save(build.random_model(seed, **build.SMALL), tmp_path / "base", dtype="float32")
    tokens, runner = build.prompts(seed, build.SMALL["vocab_size"]), Runner(engine, base)
    plain, seen = runner.model, []
    for number, kind in enumerate(["both", "saved embedding"]):
        options = {"r": 2, "lora_alpha": 3} | KINDS[kind]
        folder = tmp_path / f"a{number}"
        adapted = build_adapters.peft_adapter(build.truth(base), folder, seed + number, **options)
        seen.append((folder, build.logits(adapted, tokens)))
    seen.append((None, build.logits(build.truth(base), tokens)))
    if engine != "reference":
        monkeypatch.setattr(type(plain.checkpoint), "tensor", None)
    for folder, expected in [*seen, *seen[::-1]]:
        runner.model = runner.model.with_adapter(folder)
        judge(engine, "swapped", runner.logits(tokens), expected)
        assert runner.model.checkpoint is plain.checkpoint


def test_a_merge_of_peft_changes_a_tied_head_too(seed_for, judge, tmp_path):
    """The adapter of a tied embedding is none of the head; merged by peft it is. Ours unties."""
    seed = seed_for("merge")
    config = build.SMALL | {"tie_word_embeddings": True}
    base = build.save(build.random_model(seed, **config), tmp_path / "base", dtype="float32")
    options = {"r": 2, "lora_alpha": 3, "target_modules": ["embed_tokens"]}
    model = build.truth(base)
    adapted = build_adapters.peft_adapter(model, tmp_path / "a", seed, **options)
    tokens = build.prompts(seed, config["vocab_size"])
    expected = build.logits(adapted, tokens)
    assert fuse(base, tmp_path / "a", tmp_path / "fused")["untied"]
    found = build.logits(build.truth(tmp_path / "fused"), tokens)
    judge("transformers", "fused, once tied", found, expected)
    with pytest.warns(UserWarning, match="tie_word_embeddings"):  # peft knows, and merges
        merged = adapted.merge_and_unload()
    assert error(build.logits(merged, tokens), expected) > 0.1
