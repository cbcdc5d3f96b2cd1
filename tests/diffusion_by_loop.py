"""WeDLM's decoder once more, from its description alone: no cache, no window, a loop a rule.

Everything is computed anew in each step, the prompt too, in the physical order. What is known is a
dictionary from positions to tokens. Also small models for it: a scripted one, and random ones.
"""

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from lockstep.parity.noise.random_checkpoint import random_weight, safetensors, weight_shapes
from lockstep.reference import ops
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.model import Model

Score = Callable[[list[int], list[int]], np.ndarray]


class Settings(NamedTuple):
    """What the description calls W, tau, lambda; and what the two engines do in their own way."""

    mask: int
    window: int = 4
    threshold: float | None = 0.4
    slope: float = 0.02
    from_window: bool = False  # whether distances begin at the window, not at the first mask
    heat: float = 1.0  # what logits are divided by before the entropy
    floor: float = 0.0  # what is added before the logarithm
    port: bool = False  # the port to MLX commits and refills after the step, and never stops


def simulated(
    score: Score,
    prompt: Sequence[int],
    settings: Settings,
    *,
    most: int,
    stop: Collection[int] = (),
    room: int = 10**6,
    choose: Callable[[np.ndarray], int] = lambda row: int(row.argmax()),
) -> tuple[list[int], list[list[int]]]:
    """Return the tokens, and the positions that each step ran after the prompt's final part.

    `score` takes tokens and positions in physical order, and returns logits of all (N, V).
    """
    known: dict[int, int] = {}
    text, runs = list(prompt), []
    edge = min(len(prompt) + settings.window, room)
    while edge > len(text) and len(text) < len(prompt) + most:
        ready = 0
        while not settings.port and len(text) + ready in known:
            ready += 1
        edge = min(edge + ready, room)
        filled = sorted(known)
        masks = [at for at in range(len(text), edge) if at not in known]
        runs.append(filled + masks)
        tokens = text + [known[at] for at in filled] + [settings.mask] * len(masks)
        logits = score(tokens, [*range(len(text)), *filled, *masks])
        rows = dict(zip(masks, logits[len(tokens) - len(masks) :], strict=True))
        first = len(text)
        for _ in range(ready):
            text.append(known.pop(len(text)))
            if text[-1] in stop or len(text) == len(prompt) + most:
                return text[len(prompt) :], runs
        for at in sure(rows, settings, first):
            known[at] = choose(rows[at])
        while settings.port and len(text) in known and len(text) < len(prompt) + most:
            text.append(known.pop(len(text)))
            edge = min(edge + 1, room)
    return text[len(prompt) :], runs


def sure(rows: dict[int, np.ndarray], settings: Settings, first: int) -> list[int]:
    """Return the positions of the masks that are filled in."""
    if not rows:
        return []
    base = first if settings.from_window else min(rows)
    sums = {at: unsureness(rows[at], settings) + settings.slope * (at - base) for at in rows}
    below = [at for at in rows if settings.threshold is not None and sums[at] < settings.threshold]
    return below or [min(sums, key=lambda at: (sums[at], at))]


def unsureness(row: np.ndarray, settings: Settings) -> float:
    powers = [math.exp((float(x) - float(row.max())) / settings.heat) for x in row]
    shares = [power / math.fsum(powers) for power in powers]
    return -math.fsum(p * math.log(p + settings.floor) for p in shares if p)


def scored_by(path: Path) -> Score:
    """Return a reference model that knows no order but that of the row it is given."""
    names = {name: getattr(ops, name) for name in ops.__all__}

    def triangle(queries: np.ndarray, keys: np.ndarray, *, window: None) -> np.ndarray:
        return np.tri(queries.shape[1], keys.shape[1], dtype=bool)[None, None]

    plain = SimpleNamespace(**names | {"causal_mask": triangle})
    model = Model(open_checkpoint(path), dtype="float32", ops=plain)
    return lambda tokens, positions: model.forward([tokens], positions=np.array([positions]))[0]


CONFIG: dict[str, Any] = {
    "model_type": "wedlm",
    "architectures": ["WeDLMForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
BUILDS = {
    "8B": {"attention_bias": False, "qk_norm": True},
    "7B": {"attention_bias": True, "qk_norm": False},
}


def checkpoint(folder: Path, build: str, *, seed: int, sharp: float = 1.0, **keys: Any) -> Path:
    """Write a random model of WeDLM, whose logits are `sharp` times as far apart as they were.

    The embedding of the mask, its last token, is small: what becomes of it is what it sees.
    """
    config = CONFIG | BUILDS[build] | keys
    rng = np.random.default_rng(seed)
    drawn = {
        name: random_weight(name, shape, rng).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }
    if build == "7B":  # Qwen2.5's layers: no norm of heads, no bias of the output
        drawn = {n: w for n, w in drawn.items() if "q_norm" not in n and "k_norm" not in n}
        drawn = {n: w for n, w in drawn.items() if not n.endswith("o_proj.bias")}
    drawn["model.embed_tokens.weight"][-1] *= np.float32(0.01)
    drawn["model.norm.weight"] *= np.float32(sharp)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(drawn))
    return folder
