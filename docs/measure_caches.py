"""Measure every kind of cache and renew the table of caches.md: `python docs/measure_caches.py`.

The demo's model reads 256 tokens of questions and its own answers, by eights and then one by one.
The truth is the reference in float32 on the whole text, without a cache.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import fast, reference
from lockstep.parity.generating import Generation
from lockstep.parity.uniforms import seeded
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.kinds import KINDS, ROTATING, TURBO_BITS

PAGE = Path(__file__).parent / "caches.md"
MODEL = Path(__file__).parents[1] / "parity/demo/checkpoint"
TABLE = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
QUESTIONS = (
    "What is 2+2?", "What colour is snow?", "What is 12 + 7?", "What is the opposite of hot?",
    "What day comes after Monday?", "Tell me about a king.", "What is 9 - 4?",
)  # fmt: skip
TOKENS, CHUNK, SINGLE = 256, 8, 8  # the last ones come one by one
TOLD = {"preallocated": {"room": TOKENS}} | {kind: {"size": 128, "keep": 4} for kind in ROTATING}
TOLD |= {kind: {"recent": 0} for kind in TURBO_BITS}
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
    single = TOKENS - SINGLE
    edges = [*range(0, single, CHUNK), *range(single, TOKENS + 1)]
    parts = [model.forward(tokens[:, a:b], cache=cache) for a, b in pairwise(edges)]
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
            cache = model.make_cache(kind, **TOLD.get(kind, {}))
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
