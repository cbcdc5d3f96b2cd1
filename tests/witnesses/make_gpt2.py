"""Make the witnesses of GPT-2: run it as `python -m tests.witnesses.make_gpt2`.

It writes `tests/witnesses/gpt2/<name>/`: a checkpoint, and `expected.npz`, what transformers
computes from it in float32. Needs the group `peers`.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses import build, build_gpt2, make_models

HERE = Path(__file__).parent / "gpt2"
VARIANT = {
    "activation_function": "gelu",
    "scale_attn_by_inverse_layer_idx": True,
    "n_inner": 80,
    "tie_word_embeddings": False,
    "layer_norm_epsilon": 1e-3,
}


def original(seed: int, scratch: Path) -> Path:
    """Store a model as the original files are: no prefix, (inputs, outputs), masks as buffers."""
    model = build_gpt2.random_model(seed, **build_gpt2.SMALL)
    folder = build.save(model, scratch / "plain", dtype="float16")
    return build_gpt2.as_on_the_hub(folder, masked_bias=True)


def variant(seed: int, scratch: Path) -> Path:
    """Store a model as transformers does, with every key unlike the original's."""
    model = build_gpt2.random_model(seed, **(build_gpt2.SMALL | VARIANT))
    return build.save(model, scratch / "plain", dtype="bfloat16")


def packed(seed: int, scratch: Path) -> Path:
    """Let mlx-lm convert the original form to 4 bits."""
    model = build_gpt2.random_model(seed, **build_gpt2.PACKABLE)
    plain = build_gpt2.as_on_the_hub(build.save(model, scratch / "plain", dtype="bfloat16"))
    with contextlib.redirect_stdout(io.StringIO()):
        return build.convert(plain, scratch / "packed", bits=4, group_size=32)


RECIPES: dict[str, Callable[[int, Path], Path]] = {
    recipe.__name__: recipe for recipe in (original, variant, packed)
}


def make(name: str, scratch: Path) -> None:
    """Try seeds until the greedy continuation is lively and far from any tie; keep that one."""
    for seed in range(make_models.SEEDS):
        folder = RECIPES[name](seed, scratch / str(seed))
        model: Any = build_gpt2.truth(folder)
        tokens = build.prompts(seed, model.config.vocab_size)
        expected = make_models.continuations(model, tokens)
        if expected["margin"] >= make_models.MARGIN and expected["distinct"] >= 4:
            expected |= {"seed": np.array(seed), "logits": build.logits(model, tokens)}
            outputs = build_gpt2.activations(model, tokens[:1])
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
