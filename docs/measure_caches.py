"""Measure every kind of cache and renew the table of caches.md: `python docs/measure_caches.py`.

The demo's model reads 256 tokens of questions and its own answers: 248 at once, then one by one.
The truth is the reference in float32 on the whole text, without a cache.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import fast, reference
from lockstep.parity.generating import Generation
from lockstep.parity.uniforms import seeded
from lockstep.reference.tokenizer.cache_kinds import KINDS
from lockstep.reference.tokenizer.sampling_options import SamplingOptions

PAGE = Path(__file__).parent / "caches.md"
MODEL = Path(__file__).parents[1] / "parity/demo/checkpoint"
TABLE = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
QUESTIONS = (
    "What is 2+2?", "What colour is snow?", "What is 12 + 7?", "What is the opposite of hot?",
    "What day comes after Monday?", "Tell me about a king.", "What is 9 - 4?",
)  # fmt: skip
TOKENS, AT_ONCE = 256, 248
COLUMNS = (
    "cache", "bytes a token on `reference`", "on `cpu`, `mlx`", "error on `reference`", "on `cpu`",
    "on `mlx`", "same best token",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"


def text(model: Any) -> np.ndarray:
    """Return questions and the answers that the model gives, one after the other, (1, 256)."""
    tokens: list[int] = []
    while len(tokens) < TOKENS:
        for question in QUESTIONS:
            made = Generation(model, SamplingOptions(), seeded(0), ignore_eos=False)
            asked = made.tokenizer.encode_chat([{"role": "user", "content": question}])
            tokens += [*asked, *made.run(asked, 24, lambda piece: None)["tokens"]]
    return np.array([tokens[:TOKENS]])


def through(model: Any, cache: Any, tokens: np.ndarray) -> np.ndarray:
    """Return the logits (256, V) of a text that goes through a cache."""
    parts = [model.forward(tokens[:, :AT_ONCE], cache=cache)]
    for place in range(AT_ONCE, TOKENS):
        parts.append(model.forward(tokens[:, place : place + 1], cache=cache))
    host = model.backend.host if hasattr(model, "backend") else np.asarray
    return np.concatenate([host(part)[0] for part in parts]).astype(np.float64)


def rows() -> Iterator[tuple[str, list[float], list[float], float]]:
    """Yield each kind with bytes a token and error of each backend, and how often they agree."""
    models = [
        reference.load(MODEL), fast.load(MODEL, backend="cpu"), fast.load(MODEL, backend="mlx")
    ]  # fmt: skip
    tokens = text(models[1])
    truth = models[0].forward(tokens)[0].astype(np.float64)
    for kind in KINDS:
        held, off, same = [], [], 1.0
        for model in models:
            cache = model.make_cache(kind, room=TOKENS if kind == "preallocated" else None)
            found = through(model, cache, tokens)
            held.append(cache.nbytes / TOKENS)
            off.append(float(np.sqrt(np.mean((found - truth) ** 2)) / truth.std()))
            same = min(same, float((found.argmax(-1) == truth.argmax(-1)).mean()))
        yield kind, held, off, same


def table() -> str:
    lines = []
    for kind, held, off, same in rows():
        errors = " | ".join(f"{error:.0e}" if error < 1e-4 else f"{error:.2g}" for error in off)
        counts = f"{held[0]:.0f} | {held[1]:.0f}"
        lines.append(f"| `{kind}` | {counts} | {errors} | {100 * same:.1f} % |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    old = PAGE.read_text(encoding="utf-8")
    made = table()
    PAGE.write_text(TABLE.sub(lambda found: found[1] + made + found[2], old), encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
