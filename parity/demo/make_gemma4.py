"""Makes the demo's Gemma 4 from nothing: the 26B-A4B in miniature, in 4 and 8 bits.

    python -m lockstep.parity.demo.make_gemma4 --out DIR

Needs the extra `demo-training` (torch, transformers, mlx-lm); the product itself does not.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep.parity.demo import make_tokenizer, measure, stories
from lockstep.parity.demo.make_checkpoint import CORPUS_SEED, ROWS, TOKENS, save_transformers, texts
from lockstep.parity.demo.make_corpus import Example, make_corpus
from lockstep.parity.demo.model_card import gemma4_card
from lockstep.parity.demo.train import Recipe, train

SLIDING, FULL = "sliding_attention", "full_attention"
LAYER_SCALARS = (0.5, 0.3, 0.4, 0.7)
RECIPE = Recipe(
    steps=640,
    quantized_steps=180,
    batch=128,
    peak_rate=3e-3,
    weight_decay=0.3,
    bits=4,
    group_size=64,
    seed=0,
    wide=(".mlp.", ".router."),  # as mlx-community keeps them
)
# Heads of two widths; on full layers the keys are the values, and a quarter of a head turns.
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": len(LAYER_SCALARS),
    "layer_types": [SLIDING, FULL] * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "sliding_window": 16,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.05,
    "tie_word_embeddings": True,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}


def corpus() -> list[Example]:
    return [*make_corpus(CORPUS_SEED), *stories.examples()]


def make_gemma4(out: Path, *, threads: int) -> None:
    """Write the finished checkpoint folder."""
    import torch

    if out.exists():
        raise SystemExit(f"{out}: already exists")
    torch.set_num_threads(threads)
    examples = corpus()
    tokenizer = make_tokenizer.make_tokenizer(texts(examples), TOKENS)
    model = make_model(tokenizer)
    train(model, tokenizer, examples, RECIPE)
    with tempfile.TemporaryDirectory() as scratch:
        save_transformers(Path(scratch), model, tokenizer)
        convert(Path(scratch), out)
    (out / "README.md").unlink()
    write_card(out, sum(value.numel() for value in model.parameters()), threads=threads)


def write_card(out: Path, parameters: int, *, threads: int) -> None:
    """Measure what the packed model knows, and write it down."""
    score = measure.measure(out, corpus())
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    card = gemma4_card(
        out, config, score, RECIPE, threads=threads, parameters=parameters, scalars=LAYER_SCALARS
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    print(measure.score_table(score), file=sys.stderr)


def make_model(tokenizer: Any) -> Any:
    """An untrained Gemma 4 whose every part matters: no gain, scale or scalar is 1."""
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    end_of_text, _, turn_end = map(tokenizer.token_to_id, make_tokenizer.SPECIAL_TOKENS)
    torch.manual_seed(RECIPE.seed)
    config = Gemma4TextConfig(
        **SHAPE,
        vocab_size=ROWS,
        vocab_size_per_layer_input=ROWS,
        eos_token_id=turn_end,
        pad_token_id=end_of_text,
        bos_token_id=None,
    )
    model = Gemma4ForCausalLM(config)
    generator = torch.Generator().manual_seed(RECIPE.seed)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value.data = 0.4 * (0.6 * noise).exp()
        elif name.endswith(("per_expert_scale", "router.scale")):
            value.data = (0.3 * noise).exp()
        elif name.endswith("router.proj.weight"):
            value.data = noise
        elif name.endswith("layer_scalar"):
            value.data.fill_(LAYER_SCALARS[int(name.split(".")[2])])
    return model


def convert(source: Path, out: Path) -> None:
    """Quantise with mlx-lm, exactly as the checkpoints of mlx-community are made."""
    import mlx_lm

    spell_as_published(source / "config.json")

    def packing(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized"):
            return False
        bits = RECIPE.bits_of(f"{path}.")
        return True if bits == RECIPE.bits else {"bits": bits, "group_size": RECIPE.group_size}

    predicate: Any = packing  # it is called with two arguments, whatever its type says
    mlx_lm.convert(
        str(source), str(out), quantize=True, q_bits=RECIPE.bits,
        q_group_size=RECIPE.group_size, quant_predicate=predicate,
    )  # fmt: skip


def spell_as_published(path: Path) -> None:
    """Spell a config as Google's files do, two keys for all full layers: mlx-lm reads those."""
    config = json.loads(path.read_text(encoding="utf-8"))
    full = next(iter(config.pop("per_layer_config").values()))
    config["global_head_dim"] = full["head_dim"]
    config["num_global_key_value_heads"] = full["num_key_value_heads"]
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train and convert the demo's Gemma 4.")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--threads", type=int, default=1, help="more than are free is slower")
    options = parser.parse_args()
    make_gemma4(options.out, threads=options.threads)


if __name__ == "__main__":
    main()
