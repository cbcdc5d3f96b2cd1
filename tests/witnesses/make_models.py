"""Make the witnesses of whole models: run it as `python tests/witnesses/make_models.py`.

It writes `tests/witnesses/models/<name>/`: a checkpoint, and `expected.npz`, what transformers
computes from it in float32. Needs the group `peers`. The same versions give the same numbers up
to the rounding of the machine's own matrix product.
"""

import argparse
import contextlib
import io
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses import build

HERE = Path(__file__).parent / "models"
KEPT = ("config.json", "*.safetensors", "*.safetensors.index.json")
# Far above the noise of float32: no right model can pick another token.
MARGIN, DISTINCT, SEEDS = 5e-3, 6, 400
TAPPED = 3  # tokens whose activations are kept: the last of the first row
STEPS = np.array([0, 1, 7, 15])  # of the generation whose logits are kept


@dataclass(frozen=True)
class Recipe:
    """How one witness is made. `bits` None leaves it as transformers stored it, 0 means mixed.

    `grid` lists what is mixed, where that is not every affine packing.
    """

    dtype: str
    config: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: build.SMALL)
    shard: str | None = None
    old_spelling: bool = False
    bits: int | None = None
    group_size: int = 64
    grid: list[dict[str, Any]] | None = None
    taps: bool = True  # every module's output
    extras: bool = False  # half precision and positions with gaps


UNTIED = {"tie_word_embeddings": False}
BIASED = {"attention_bias": True}
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
ODD = {"vocab_size": 120, "hidden_size": 48, "intermediate_size": 80}
# So large that an eps which is not read from the config is seen.
ODD |= {"num_attention_heads": 4, "head_dim": 20, "rms_norm_eps": 1e-3}

RECIPES = {
    "tied_bfloat16": Recipe("bfloat16", {"rope_theta": 1e6}, extras=True),
    "untied_float32": Recipe("float32", UNTIED | ODD, shard="100KB", old_spelling=True),
    "biased_float16": Recipe(
        "float16", UNTIED | BIASED | {"num_key_value_heads": 3, "rms_norm_eps": 1e-5}
    ),
    "sliding_bfloat16": Recipe("bfloat16", SLIDING | {"num_hidden_layers": 3}, old_spelling=True),
    "affine_2_32": Recipe("float16", UNTIED, bits=2, group_size=32, taps=False),
    "affine_3_64": Recipe("bfloat16", bits=3, old_spelling=True, taps=False),
    "affine_4_64": Recipe("bfloat16", UNTIED, bits=4, taps=False),
    "affine_5_32": Recipe("float32", bits=5, group_size=32, taps=False),
    "affine_6_64": Recipe("bfloat16", UNTIED, bits=6, taps=False),
    "affine_8_32": Recipe("bfloat16", bits=8, group_size=32, taps=False),
    "affine_mixed": Recipe("bfloat16", UNTIED, build.WIDE, bits=0, group_size=128),
    "minifloats_mixed": Recipe(
        "bfloat16", {"vocab_size": 96}, bits=0, group_size=32, grid=build.EVERY_MODE
    ),
    "affine_biased_sliding": Recipe("bfloat16", BIASED | SLIDING, bits=4, group_size=32),
}


def main() -> None:
    """Make the witnesses that are named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*RECIPES], metavar="NAME")
    build.settle()
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as scratch:
            make(name, RECIPES[name], Path(scratch))


def make(name: str, recipe: Recipe, scratch: Path) -> None:
    """Try seeds until the greedy continuation is lively and far from any tie; keep that one."""
    for seed in range(SEEDS):
        folder = checkpoint(recipe, seed, scratch / str(seed))
        model = build.truth(folder)
        tokens = build.prompts(seed, model.config.vocab_size)
        expected = continuations(model, tokens)
        if expected["margin"] >= MARGIN and expected["distinct"] >= DISTINCT:
            expected |= {"seed": np.array(seed), "logits": build.logits(model, tokens)}
            expected |= taps(model, tokens) if recipe.taps else {}
            expected |= extras(folder, tokens) if recipe.extras else {}
            keep(folder, HERE / name, expected)
            print(f"{name}: seed {seed}, margin {expected['margin']:.4f}")
            return
    raise RuntimeError(f"{name}: no seed below {SEEDS} is far from a tie")


def checkpoint(recipe: Recipe, seed: int, scratch: Path) -> Path:
    """Store a random model as the recipe says, and return its folder."""
    model = build.random_model(seed, **(recipe.base | recipe.config))
    plain = build.save(
        model,
        scratch / "plain",
        dtype=recipe.dtype,
        shard=recipe.shard,
        old_spelling=recipe.old_spelling,
    )
    if recipe.bits is None:
        return plain
    if recipe.config.get("attention_bias"):
        return build.quantize_by_hand(plain, bits=recipe.bits, group_size=recipe.group_size)
    predicate = None if recipe.bits else build.mixed(seed, recipe.grid)
    with contextlib.redirect_stdout(io.StringIO()):
        return build.convert(
            plain,
            scratch / "packed",
            bits=recipe.bits or 4,
            group_size=recipe.group_size,
            predicate=predicate,
        )


def continuations(model: Any, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the greedy continuations of equal and unequal prompts, and how clear they are."""
    ids, seen = build.greedy(model, tokens)
    unequal_ids, unequal_seen = build.greedy_unequal(model, tokens)
    margins = [build.margins(seen).min(), build.margins(unequal_seen).min()]
    return {
        "tokens": tokens,
        "greedy": ids,
        "unequal_lengths": np.array([build.PROMPT, build.SHORT]),
        "unequal_greedy": unequal_ids,
        "unequal_steps": STEPS,
        "unequal_logits": unequal_seen[:, STEPS],
        "margin": np.array(min(margins)),
        "distinct": np.array(min(len(set(row)) for row in [*ids, *unequal_ids])),
    }


def taps(model: Any, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return what every module gives for the last tokens of the first prompt."""
    outputs = build.activations(model, tokens)
    return {f"tap:{name}": value[:1, -TAPPED:] for name, value in outputs.items()}


def extras(folder: Path, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return logits in half precision, and at positions with gaps."""
    halves = {
        f"logits_{dtype}": build.logits(build.truth(folder, dtype=dtype), tokens)
        for dtype in ("bfloat16", "float16")
    }
    steps = np.random.default_rng(0).integers(1, 5, tokens.shape)
    positions = steps.cumsum(axis=1)
    gapped = build.logits_at(build.truth(folder), tokens, positions)
    return {**halves, "positions": positions, "logits_at_positions": gapped}


def keep(source: Path, target: Path, expected: dict[str, np.ndarray]) -> None:
    """Replace a committed witness."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in KEPT:
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)
    np.savez_compressed(target / "expected.npz", **expected)


if __name__ == "__main__":
    main()
