"""Make the GGUF witnesses: run it as `python -m tests.witnesses.make_gguf`.

It writes `tests/witnesses/gguf/<name>.gguf` with the gguf package, `gemma4_e2b` in three parts, and
`<name>.npz` beside it: what transformers computes in float32 from the values that the package reads
out of the file. And `blocks.npz`: blocks of every format with what the package makes of them. Needs
the group `peers`.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.witnesses import build, build_gemma4, build_gpt2, gguf_files, gguf_gemma4

HERE = Path(__file__).parent / "gguf"
DEMO = Path(__file__).parents[2] / "parity" / "demo" / "checkpoint"
MARGIN, SEEDS, DISTINCT = 5e-3, 400, 6
FORMATS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
SMALL = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "F16", "BF16", "F32")
LARGE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass(frozen=True)
class Recipe:
    """One file: the class of its model, its config, and the type of each of its matrices.

    `most` is how many tensors a part may have, where the file is to be several.
    """

    model: Any
    config: Any
    kinds: Callable[[], Callable[[str], str]]
    tokenizer: bool = False
    most: int = 0


def mixed() -> Callable[[str], str]:
    """Deal out every type; inputs of 64 are too narrow for blocks of 256."""
    large, small = cycle(LARGE), cycle(SMALL)

    def kind(name: str) -> str:
        wide = "o_proj" not in name and "down_proj" not in name and "up_proj" not in name
        return next(large) if wide else next(small)

    return kind


def wide() -> Callable[[str], str]:
    """As `mixed`, but a head of drawn blocks would have one token that is always the best."""
    dealt = mixed()
    ends = ("embed_tokens.weight", "lm_head.weight")
    return lambda name: "Q8_0" if name.endswith(ends) else dealt(name)


def narrow() -> Callable[[str], str]:
    """Deal out the types with blocks of 32; routers are plain."""
    small = cycle(SMALL)
    return lambda name: gguf_gemma4.plain_router(name) or next(small)


def one(name: str) -> Callable[[], Callable[[str], str]]:
    return lambda: lambda _: name


RECIPES = {
    "qwen3_mixed": Recipe(
        Qwen3ForCausalLM,
        Qwen3Config(
            **build.SMALL
            | {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 4}
            | {"num_attention_heads": 4, "vocab_size": 64, "tie_word_embeddings": False}
        ),
        mixed,
    ),
    "qwen3_tied": Recipe(
        Qwen3ForCausalLM,
        Qwen3Config(**build.SMALL | {"vocab_size": 704, "hidden_size": 32}),
        one("Q8_0"),
        tokenizer=True,
    ),
    "llama_stretched": Recipe(
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=100,
            hidden_size=96,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=128,
            rms_norm_eps=1e-5,
            rope_parameters=LLAMA3,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        one("Q4_0"),
    ),
    "qwen2_biased": Recipe(
        Qwen2ForCausalLM,
        Qwen2Config(
            **build.SMALL | {"head_dim": 32, "num_attention_heads": 4, "tie_word_embeddings": False}
        ),
        one("Q8_0"),
    ),
    "gpt2_turned": Recipe(
        GPT2LMHeadModel,
        GPT2Config(**build_gpt2.SMALL | {"n_embd": 96, "n_layer": 1}),
        one("Q4_0"),
    ),
}
NARROW = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "global_head_dim": 32}
# Tied, a wide model would repeat itself.
WIDE = NARROW | {"hidden_size": 256, "tie_word_embeddings": False}
STEADY = {"hidden_size_per_layer_input": 32, "rms_norm_eps": 0.1}
GEMMA4 = {
    "gemma4_31b": (build_gemma4.DENSE | WIDE, wide, 0),
    "gemma4_26b": (build_gemma4.SPARSE | NARROW | {"moe_intermediate_size": 32}, narrow, 0),
    "gemma4_e2b": (build_gemma4.SMALL_BUILD | NARROW | STEADY, narrow, 30),
}
RECIPES |= {
    name: Recipe(Gemma4ForCausalLM, Gemma4TextConfig(**config), kinds, most=most)
    for name, (config, kinds, most) in GEMMA4.items()
}
KEY = "model.layers.0.self_attn.k_proj.weight"


def random_model(recipe: Recipe, seed: int) -> Any:
    """Return a float32 model whose every parameter is random."""
    if recipe.model is Gemma4ForCausalLM:
        return build_gemma4.random_model(seed, **recipe.config.to_dict())
    model = recipe.model(recipe.config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = build_gpt2.spread if recipe.model is GPT2LMHeadModel else build._spread
            parameter.copy_(spread(name, torch.randn(parameter.shape, generator=generator)))
    return model


def make(name: str, recipe: Recipe, folder: Path) -> None:
    """Write the file of the first seed whose generated tokens are beyond doubt."""
    add = None
    if recipe.tokenizer:
        add = gguf_files.byte_level_tokenizer(DEMO, pre="qwen2", size=recipe.config.vocab_size)
    for seed in range(SEEDS):
        model = random_model(recipe, seed)
        path = folder / f"{name}.gguf"
        held = gguf_files.write_gguf(
            path, model, recipe.kinds(), tokenizer=add, seed=seed, most=recipe.most
        )
        gguf_files.loaded(model, held)
        tokens = build.prompts(seed, recipe.config.vocab_size)
        ids, seen = build.greedy_unequal(model, tokens)
        if build.margins(seen).min() > MARGIN and settled(recipe, model, tokens, ids):
            break
    else:
        raise SystemExit(f"{name}: no seed below {SEEDS} generates tokens beyond doubt")
    turned = recipe.model is GPT2LMHeadModel
    key = held["transformer.h.0.attn.c_attn.weight" if turned else KEY]
    expected = {
        "tokens": tokens,
        "logits": build.logits(model, tokens),
        "lengths": np.array([build.PROMPT, build.SHORT]),
        "greedy": ids,
        "key": (key.T if turned else key).numpy(),
    }
    np.savez_compressed(folder / f"{name}.npz", **expected)


def settled(recipe: Recipe, model: Any, tokens: np.ndarray, ids: np.ndarray) -> bool:
    """Say whether Gemma 4 routes beyond doubt, and does not only repeat itself."""
    if recipe.model is not Gemma4ForCausalLM:
        return True
    return len(np.unique(ids)) >= DISTINCT and build_gemma4.settled(model, tokens)


def make_blocks(folder: Path) -> None:
    """Draw blocks of every format: any byte, and scales of every size that float16 has."""
    rng, found = np.random.default_rng(0), {}
    for name in FORMATS:
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
        blocks = rng.integers(0, 256, (3, 2 * size), np.uint8)
        values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        while not np.isfinite(values).all():
            blocks = rng.integers(0, 256, (3, 2 * size), np.uint8)
            values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        found |= {f"{name}.blocks": blocks, f"{name}.values": values}
    np.savez_compressed(folder / "blocks.npz", **found)


def main() -> None:
    build.settle()
    with tempfile.TemporaryDirectory() as made, np.errstate(invalid="ignore", over="ignore"):
        folder = Path(made) / "gguf"
        folder.mkdir()
        make_blocks(folder)
        for name, recipe in RECIPES.items():
            make(name, recipe, folder)
        shutil.rmtree(HERE, ignore_errors=True)
        shutil.copytree(folder, HERE)
    for path in sorted(HERE.iterdir()):
        print(f"{path.stat().st_size:8d}  {path.name}")


if __name__ == "__main__":
    main()
