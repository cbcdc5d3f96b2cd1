"""Make the witnesses of Llama, Mistral and Qwen2: `python -m tests.witnesses.make_llama`.

It writes `tests/witnesses/llama/<name>/`: a checkpoint, and `expected.npz`, what transformers
computes from it in float32. Needs the group `peers`.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses import build, build_llama, make_models

HERE = Path(__file__).parent / "llama"
DISTINCT = 4


@dataclass(frozen=True)
class Recipe:
    """A family, its scaling, and how both are stored."""

    family: str
    scaling: str
    dtype: str
    spelling: str
    more: dict[str, Any] = field(default_factory=dict)


TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
RECIPES = {
    "biased_llama3": Recipe("llama with biases", "llama3", "bfloat16", "rope_parameters", UNTIED),
    "mistral_window": Recipe("mistral with a window", "default", "float16", "type", UNTIED),
    "qwen2_yarn": Recipe("qwen2 with a window", "yarn", "bfloat16", "type", TIED),
    "llama_dynamic": Recipe("llama", "dynamic", "bfloat16", "rope_type", TIED),
    "llama_longrope": Recipe("llama", "longrope", "bfloat16", "rope_parameters", TIED),
}


def main() -> None:
    build.settle()
    for name, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory() as scratch:
            make(name, recipe, Path(scratch))


def make(name: str, recipe: Recipe, scratch: Path) -> None:
    """Try seeds until the greedy continuation is lively and far from any tie; keep that one."""
    keys = build_llama.config(recipe.family, recipe.scaling, **recipe.more)
    for seed in range(make_models.SEEDS):
        model = build_llama.random_model(seed, keys)
        folder = scratch / str(seed)
        build_llama.save(model, folder, dtype=recipe.dtype, spelling=recipe.spelling)
        model = build.truth(folder)
        tokens = build.prompts(seed, keys["vocab_size"])
        expected = continuations(model, tokens)
        if expected["margin"] >= make_models.MARGIN and expected["distinct"] >= DISTINCT:
            expected |= prefills(model, tokens) | {"seed": np.array(seed)}
            make_models.keep(folder, HERE / name, expected)
            print(f"{name}: seed {seed}, margin {expected['margin']:.4f}")
            return
    raise RuntimeError(f"{name}: no seed below {make_models.SEEDS} is far from a tie")


def continuations(model: Any, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the greedy continuations of equal and unequal prompts, and how clear they are."""
    ids, seen = build_llama.greedy(model, tokens)
    unequal_ids, unequal_seen = build_llama.greedy_unequal(model, tokens)
    margins = [build.margins(seen).min(), build.margins(unequal_seen).min()]
    return {
        "tokens": tokens,
        "greedy": ids,
        "unequal_lengths": np.array([build.PROMPT, build.SHORT]),
        "unequal_greedy": unequal_ids,
        "unequal_steps": make_models.STEPS,
        "unequal_logits": unequal_seen[:, make_models.STEPS],
        "margin": np.array(min(margins)),
        "distinct": np.array(min(len(set(row)) for row in [*ids, *unequal_ids])),
    }


def prefills(model: Any, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the logits of the prompts, of the short one alone, and what every module gives."""
    outputs = build.activations(build_llama.fresh(model), tokens[:1])
    taps = {f"tap:{name}": value[:, -make_models.TAPPED :] for name, value in outputs.items()}
    return taps | {
        "logits": build_llama.logits(model, tokens),
        "short_logits": build_llama.logits(model, tokens[1:, : build.SHORT]),
    }


if __name__ == "__main__":
    main()
