"""Make the witnesses of Gemma 4: run it as `python -m tests.witnesses.make_gemma4`.

It writes `tests/witnesses/gemma4/<name>/`: a checkpoint, and `expected.npz`, what transformers
computes from it in float32. Needs the group `peers`.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses import build, build_gemma4, make_models

HERE = Path(__file__).parent / "gemma4"


def dense(seed: int, scratch: Path) -> tuple[Path, Path]:
    """Like 31B, as transformers 5 writes it: k = v on full layers."""
    model = build_gemma4.random_model(seed, **build_gemma4.DENSE)
    folder = build_gemma4.save(model, scratch / "plain", dtype="bfloat16")
    return folder, folder


def sparse(seed: int, scratch: Path) -> tuple[Path, Path]:
    """Like 26B-A4B, in the multimodal layout of published files."""
    model = build_gemma4.random_model(seed, **build_gemma4.SPARSE)
    plain = build_gemma4.save(model, scratch / "plain", dtype="float16")
    return plain, build_gemma4.wrapped(plain, scratch / "wrapped")


def effective(seed: int, scratch: Path) -> tuple[Path, Path]:
    """Like E2B: layers with inputs of their own, shared keys, MLPs of double width."""
    model = build_gemma4.random_model(seed, **build_gemma4.SMALL_BUILD)
    folder = build_gemma4.save(model, scratch / "plain", dtype="bfloat16")
    build_gemma4.carry_shared_keys(folder)
    return folder, folder


RECIPES: dict[str, Callable[[int, Path], tuple[Path, Path]]] = {
    recipe.__name__: recipe for recipe in (dense, sparse, effective)
}


def make(name: str, scratch: Path) -> None:
    """Try seeds until the greedy continuation is lively and far from any tie; keep that one."""
    for seed in range(make_models.SEEDS):
        plain, folder = RECIPES[name](seed, scratch / str(seed))
        model: Any = build_gemma4.truth(plain)
        tokens = build.prompts(seed, model.config.vocab_size)
        expected = make_models.continuations(model, tokens)
        clear = expected["margin"] >= make_models.MARGIN
        lively = expected["distinct"] >= make_models.DISTINCT
        if clear and lively and build_gemma4.settled(model, tokens):
            expected |= {"seed": np.array(seed), "logits": build.logits(model, tokens)}
            outputs = build_gemma4.activations(model, tokens[:1])
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
