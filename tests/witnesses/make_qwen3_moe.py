"""Make the witnesses of Qwen3-MoE: run it as `python -m tests.witnesses.make_qwen3_moe`.

It writes `tests/witnesses/qwen3_moe/<name>/`: a checkpoint, and `expected.npz`, what transformers
computes from it in float32. Needs the group `peers`.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses import build, build_qwen3_moe, make_models

HERE = Path(__file__).parent / "qwen3_moe"
# Every other layer is sparse, the weights of a token's experts do not sum to 1, all layers slide.
VARIANT = {
    "norm_topk_prob": False,
    "mlp_only_layers": [],
    "decoder_sparse_step": 2,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 3,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "use_sliding_window": True,
    "sliding_window": 9,
}


def separate(seed: int, scratch: Path) -> Path:
    """Store a model as the hub has it: three matrices an expert, the config of published files."""
    config = build_qwen3_moe.SMALL | {"num_hidden_layers": 2}
    model = build_qwen3_moe.random_model(seed, **config)
    folder = build_qwen3_moe.save(model, scratch / "plain", dtype="bfloat16")
    build.edit_config(folder, build_qwen3_moe.spell_as_before_5)
    return folder


def fused(seed: int, scratch: Path) -> Path:
    """Store a model as transformers 5 has it in memory."""
    model = build_qwen3_moe.random_model(seed, **(build_qwen3_moe.SMALL | VARIANT))
    return build_qwen3_moe.save(model, scratch / "plain", dtype="float16", fused=True)


def packed(seed: int, scratch: Path) -> Path:
    """Let mlx-lm convert to 4 bits: it stacks the experts, and keeps 8 bits for the router."""
    model = build_qwen3_moe.random_model(seed, **build_qwen3_moe.PACKABLE)
    plain = build_qwen3_moe.save(model, scratch / "plain", dtype="bfloat16")
    build.edit_config(plain, build_qwen3_moe.spell_as_before_5)
    with contextlib.redirect_stdout(io.StringIO()):
        return build.convert(plain, scratch / "packed", bits=4, group_size=32)


RECIPES: dict[str, Callable[[int, Path], Path]] = {
    recipe.__name__: recipe for recipe in (separate, fused, packed)
}


def make(name: str, scratch: Path) -> None:
    """Try seeds until the greedy continuation is lively and far from any tie; keep that one."""
    for seed in range(make_models.SEEDS):
        folder = RECIPES[name](seed, scratch / str(seed))
        model: Any = build_qwen3_moe.truth(folder)
        tokens = build.prompts(seed, model.config.vocab_size)
        expected = make_models.continuations(model, tokens)
        clear = expected["margin"] >= make_models.MARGIN
        lively = expected["distinct"] >= make_models.DISTINCT
        if clear and lively and build_qwen3_moe.settled(model, tokens):
            expected |= {"seed": np.array(seed), "logits": build.logits(model, tokens)}
            outputs = build_qwen3_moe.activations(model, tokens[:1])
            kept = slice(-make_models.TAPPED, None)
            expected |= {f"tap:{module}": value[:1, kept] for module, value in outputs.items()}
            make_models.keep(folder, HERE / name, expected)
            print(f"{name}: seed {seed}, margin {expected['margin']:.4f}")
            return
    raise RuntimeError(f"{name}: no seed below {make_models.SEEDS} is far from a tie")


def main() -> None:
    build.settle()
    for name in RECIPES:
        with tempfile.TemporaryDirectory() as scratch:
            make(name, Path(scratch))


if __name__ == "__main__":
    main()
