"""Make the witnesses of adapters: run it as `python -m tests.witnesses.make_adapters`.

It writes `tests/witnesses/adapters/<name>/`: an adapter for a committed checkpoint, and
`expected.npz`: tokens, the logits with it, and where the base is. Needs the group `peers`.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.witnesses import build, build_adapters, build_gpt2, build_qwen3_moe

ROOT = Path(__file__).parents[2]
WITNESSES = Path(__file__).parent
HERE = WITNESSES / "adapters"
LENGTH = 12
DEMO = "parity/demo/checkpoint"
LINES = ["The weather is fine today.", "What is 2+2?", "Rivers run to the sea.", "Paris is big."]

Made = tuple[Path, np.ndarray, np.ndarray, np.ndarray]


def by_peft(base: str, model: Any, logits: Callable[..., np.ndarray], **config: Any) -> Any:
    def make(folder: Path, scratch: Path) -> Made:
        plain = model(WITNESSES / base)
        tokens = drawn(plain.config.vocab_size)
        without = logits(plain, tokens)
        adapted = build_adapters.peft_adapter(plain, folder, 0, **config)
        with torch.no_grad():
            return WITNESSES / base, tokens, logits(adapted, tokens), without

    return make


def by_mlx(base: str, kind: str, **parameters: Any) -> Any:
    def make(folder: Path, scratch: Path) -> Made:
        arguments = {"fine_tune_type": kind, "num_layers": 1, "lora_parameters": parameters}
        build_adapters.mlx_adapter(WITNESSES / base, folder, 0, **arguments)
        return measured(WITNESSES / base, folder)

    return make


def trained(folder: Path, scratch: Path) -> Made:
    build_adapters.mlx_trained(ROOT / DEMO, folder, scratch / "data", LINES)
    return measured(ROOT / DEMO, folder)


def measured(base: Path, folder: Path) -> Made:
    plain = build_adapters.mlx_model(base)
    tokens = drawn(plain.args.vocab_size)
    without = build_adapters.mlx_logits(plain, tokens)
    adapted = build_adapters.mlx_model(base, folder)
    return base, tokens, build_adapters.mlx_logits(adapted, tokens), without


def drawn(vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, (1, LENGTH))


EVERY = {"target_modules": build_adapters.ALL}
RECIPES = {
    "peft_patterns": by_peft(
        "models/untied_float32", build.truth, build.logits, r=3, lora_alpha=7, **EVERY,
        rank_pattern={"k_proj": 2, r"layers\.1\.mlp\.down_proj": 1},
        alpha_pattern={"layers.1.self_attn.q_proj": 5, "^model.layers.0.mlp.up_proj": 2.5},
    ),
    "peft_rslora": by_peft(
        "llama/biased_llama3", build.truth, build.logits, r=4, lora_alpha=3,
        use_rslora=True, target_modules=["q_proj", "v_proj", "o_proj"],
    ),
    "peft_dora": by_peft(
        "models/biased_float16", build.truth, build.logits, r=2, lora_alpha=4, use_dora=True,
        **EVERY,
    ),
    "peft_gpt2": by_peft(
        "gpt2/original", build_gpt2.truth, build.logits, r=2, lora_alpha=3,
        fan_in_fan_out=True, target_modules=["c_attn", "c_fc", "mlp.c_proj"],
    ),
    "peft_packed": by_peft(
        "models/affine_mixed", build.truth, build.logits, r=2, lora_alpha=5,
        target_modules=["q_proj", "down_proj"],
    ),
    "peft_tables": by_peft(
        "models/tied_bfloat16", build.truth, build.logits, r=3, lora_alpha=7,
        target_modules=["embed_tokens", "q_proj"],
    ),
    "peft_saved": by_peft(
        "models/untied_float32", build.truth, build.logits, r=2, lora_alpha=5,
        target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head", "norm"],
    ),
    "peft_experts": by_peft(
        "qwen3_moe/fused", build_qwen3_moe.truth, build.logits, r=2, lora_alpha=5,
        target_modules=["lm_head"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
    ),
    "mlx_experts": by_mlx("qwen3_moe/packed", "lora", rank=3, scale=5.0),
    "mlx_tables": by_mlx(
        "models/affine_4_64", "lora", rank=3, scale=5.0,
        keys=["model.embed_tokens", "lm_head", "self_attn.q_proj"],
    ),
    "mlx_lora": by_mlx("models/affine_4_64", "lora", rank=3, scale=5.0),
    "mlx_dora": by_mlx("models/affine_4_64", "dora", rank=2, scale=3.0),
    "mlx_trained": trained,
}  # fmt: skip


def forget_paths(config: Path, scratch: Path) -> None:
    """Take the folders of this machine out of what the trainers wrote down."""
    text = config.read_text(encoding="utf-8")
    for path, name in ((scratch, "scratch"), (ROOT, ".")):
        text = text.replace(str(path), name)
    config.write_text(text.rstrip() + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Make all of them, or those that are named."""
    build.settle()
    for name, make in RECIPES.items():
        if names and name not in names:
            continue
        shutil.rmtree(HERE / name, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            base, tokens, logits, without = make(HERE / name, Path(scratch) / "made")
            forget_paths(HERE / name / "adapter_config.json", Path(scratch))
        moved = float(np.abs(logits - without).max() / without.std())
        np.savez_compressed(
            HERE / name / "expected.npz", tokens=tokens, logits=logits,
            base=np.array(str(base.relative_to(ROOT))),
        )  # fmt: skip
        print(f"{name}: moves the logits by {moved:.3f} of their standard deviation")


if __name__ == "__main__":
    main(sys.argv[1:])
