"""Measure every kind of cache and renew the tables of caches.md: `python docs/measure_caches.py`.

The demo's model reads 256 tokens of questions and its own answers, by eights and then one by one.
The truth is the reference in float32 on the whole text, without a cache.

A step's time is that of one layer, with 8 key/value heads of 128 and 16 queries: a token is put
behind a history and attends to it. It is compared with that of a "growing" cache beside it.
"""

import re
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep import fast, reference
from lockstep.fast.backends import backend_named
from lockstep.fast.caches.make import make_cache
from lockstep.parity.arrays import to_numpy
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.kinds import KINDS, QUANTISED, ROTATING, TURBO_BITS, CacheOptions

PAGE = Path(__file__).parent / "caches.md"
MODEL = Path(__file__).parents[1] / "parity/demo/checkpoint"
TABLE = re.compile(r"(<!-- (measured|steps) -->\n).*?(<!-- end -->)", re.DOTALL)
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
    return np.concatenate([to_numpy(part)[0] for part in parts]).astype(np.float64)


def rows(kinds: Iterable[str] = KINDS) -> Iterator[tuple[str, list[float], list[float], float]]:
    """Yield each kind with bytes a token and error of each backend, and how often they agree."""
    models = [
        reference.load(MODEL), fast.load(MODEL, backend="cpu"), fast.load(MODEL, backend="mlx")
    ]  # fmt: skip
    tokens = text(models[1])
    truth = models[0].forward(tokens)[0].astype(np.float64)
    for kind in kinds:
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


LENGTHS, ROUNDS = (256, 1024, 4096), 15
LAYER = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=8, head_dim=128)


class Layer:
    """One layer's cache of a kind, with a history in it."""

    def __init__(self, kind: str, backend: Any, history: int) -> None:
        self.backend, self.rng = backend, np.random.default_rng(0)
        self.cache = make_cache(kind, LAYER, options=CacheOptions(), backend=backend)
        self.step(history)
        self.step(1)  # codes are made of what is no longer new

    def step(self, count: int) -> float:
        """Put tokens behind the others and let the last one attend; return the seconds."""
        ops, heads = self.backend.ops, ((8, count), (8, count), (16, 1))
        keys, values, queries = (
            self.backend.put(self.rng.standard_normal((1, *shape, 128), np.float32))
            for shape in heads
        )
        places = self.cache.positions.next(1)[:, None] + np.arange(count)
        began = time.perf_counter()
        seen = ops.causal_mask(places[:, -1:], self.cache.positions.extend(places), window=None)
        held = self.cache.update(ops, 0, keys, values)
        how = {"scale": 128**-0.5, "masked_row": "uniform"}
        made = ops.attention(queries, *held, seen, **how)
        self.backend.evaluate(made, *self.cache.arrays())
        return time.perf_counter() - began


def ratios(name: str, length: int, rounds: int) -> dict[str, float]:
    """Return how many times as long as in a "growing" cache a step takes, by kind.

    The caches take turns, and of each the quickest step counts: other work only ever slows one.
    """
    backend = backend_named(name, dtype="float32", device=None)
    layers = {kind: Layer(kind, backend, length) for kind in ("growing", *QUANTISED)}
    best = dict.fromkeys(layers, float("inf"))
    for _ in range(rounds):
        for kind, layer in layers.items():
            best[kind] = min(best[kind], layer.step(1))
    return {kind: seconds / best["growing"] for kind, seconds in best.items()}


def step_table() -> str:
    names = [(backend, length) for backend in ("cpu", "mlx") for length in LENGTHS]
    found = {one: ratios(*one, ROUNDS) for one in names}
    head = " | ".join(f"`{backend}`, {length}" for backend, length in names)
    lines = [f"| cache | {head} |", "|---" * (len(names) + 1) + "|"]
    for kind in QUANTISED:
        lines.append(
            f"| `{kind}` | " + " | ".join(f"{found[one][kind]:.2g}" for one in names) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    old = PAGE.read_text(encoding="utf-8")
    made = {"measured": table(), "steps": step_table()}
    new = TABLE.sub(lambda found: found[1] + made[found[2]] + found[3], old)
    PAGE.write_text(new, encoding="utf-8")
    print(*made.values(), sep="\n")


if __name__ == "__main__":
    main()
