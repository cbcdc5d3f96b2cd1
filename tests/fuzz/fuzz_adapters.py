"""Malformed adapters without end: `python -m tests.fuzz.fuzz_adapters COUNT SEED`.

Each seed makes one folder: a sound adapter of mlx-lm or of PEFT for a small checkpoint, with a few
things broken. It must be refused in one clean line, or be read and then fit the base: the shapes of
each matrix, a factor that is a number, values that are finite.
"""

from __future__ import annotations

import copy
import json
import math
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from lockstep.reference.checkpoint.adapters import Adapters, open_adapter
from lockstep.reference.checkpoint.adapters.homes import shape_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from tests.fuzz.running import Report, command, tally

WITNESSES = Path(__file__).parents[1] / "witnesses"
BASES = ("qwen3_moe/separate", "models/untied_float32", "models/tied_bfloat16")
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**40, 1e300, "", "a", [], {}, [1], ["lm_head"]),
    *({"a": 1}, {"(a+)+": 2}, {".*": -1}),
)
PATHS = (
    *("lm_head", "model.embed_tokens", "model.norm", "model.layers.1.self_attn.q_proj", "score"),
    *("model.layers.1.mlp.experts", "model.layers.1.mlp.experts.base_layer", "x\ny", "\u202e"),
    *("model.layers.1.mlp.experts.0.up_proj", "model.layers.1.mlp.experts.99.up_proj"),
    *("model.layers.1.mlp.switch_mlp.up_proj", "model.layers.9.mlp.up_proj", "", ".", "..weight"),
)
ENDS = (
    *("lora_a", "lora_b", "m", "lora_A.weight", "lora_B.weight", "lora_embedding_A", "weight"),
    *("lora_embedding_B", "lora_magnitude_vector", "base_layer.weight", "bias", "lora_B.bias"),
)
Case = tuple[str, dict[str, np.ndarray], dict[str, Any]]


def sound(rng: random.Random, base: Checkpoint) -> Case:
    """Return the name of a file, its tensors, and its config."""
    rank, tensors, mlx = rng.randrange(1, 4), {}, rng.random() < 0.5
    start, ends = ("", ("lora_a", "lora_b")) if mlx else ("base_model.model.", ENDS[3:5])
    for path in ("model.layers.1.self_attn.q_proj", "model.layers.0.self_attn.o_proj"):
        outputs, inputs = base.stored(f"{path}.weight").shape
        shapes = ((rank, inputs), (outputs, rank))
        for end, shape in zip(ends, shapes, strict=True):
            value = np.full(shape[::-1] if mlx else shape, rng.random(), np.float32)
            tensors[f"{start}{path}.{end}"] = value
    if mlx:
        inner = {"rank": rank, "scale": 2.0, "dropout": 0.0}
        return "adapters.safetensors", tensors, {"fine_tune_type": "lora", "lora_parameters": inner}
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "rank_pattern": {}}
    return "adapter_model.safetensors", tensors, config | {"modules_to_save": None}


def broken(rng: random.Random, case: Case) -> Case:
    """Break one thing: a tensor, its name or its shape, or a key of the config."""
    file, tensors, config = case[0], dict(case[1]), copy.deepcopy(case[2])
    kind, name = rng.randrange(7), rng.choice(list(tensors) or ["a"])
    prefix = rng.choice(("", "base_model.model.", "base_model.model.", "language_model."))
    made = f"{prefix}{rng.choice(PATHS)}.{rng.choice(ENDS)}"
    if kind == 0:
        tensors.pop(name, None)
    elif kind == 1:
        tensors[made] = tensors.pop(name, np.zeros(3, np.float32))
    elif kind == 2:
        shape = [rng.choice((0, 1, 2, 6, 12, 24, 32, 64)) for _ in range(rng.randrange(5))]
        tensors[rng.choice((name, made))] = np.zeros(shape, np.float32)
    elif kind == 3 and name in tensors:
        value = rng.choice((np.nan, np.inf, 1e38, -0.0))
        with np.errstate(all="ignore"):
            tensors[name] = np.full_like(tensors[name], value)
    elif kind == 4 and name in tensors:
        dtype = rng.choice((np.float16, np.float64, np.int32, np.uint8, np.bool_))
        with np.errstate(all="ignore"):
            tensors[name] = tensors[name].astype(dtype)
    elif kind == 5:
        target = rng.choice((config, config.get("lora_parameters", config)))
        target = target if isinstance(target, dict) else config
        target[rng.choice([*target, "twist"])] = rng.choice(ODD)
    else:
        config.pop(rng.choice(list(config)), None) if config else None
    return file, tensors, config


def written(rng: random.Random, folder: Path, case: Case) -> None:
    """Write a case; now and then its bytes are broken too."""
    file, tensors, config = case
    texts = {file: save(tensors), "adapter_config.json": json.dumps(config).encode()}
    for name, data in texts.items():
        if rng.random() < 0.1 and data:
            place = rng.randrange(len(data))
            data = data[:place] + bytes([rng.randrange(256)]) + data[place + rng.randrange(3) :]
        (folder / name).write_bytes(data)


def run_case(seed: int, folder: Path, bases: list[Checkpoint]) -> str:
    """Judge one folder and return its class. Raises AssertionError if the reader got it wrong."""
    rng = random.Random(seed)
    base = rng.choice(bases)
    case = sound(rng, base)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        case = broken(rng, case)
    written(rng, folder, case)
    try:
        found = open_adapter(folder, base)
    except InputError as error:
        line = str(error)
        assert line.isprintable() and len(line.encode()) <= 400, f"unclean line {line!r}"
        return "refused"
    check(found, base)
    return "accepted"


def check(found: Adapters, base: Checkpoint) -> None:
    """Check what was read against the base alone."""
    assert found.modules or found.weights, "an adapter of nothing"
    for path, one in found.modules.items():
        shape = shape_of(path, base)
        assert shape is not None, f"{path} is not in the base"
        *stack, outputs, inputs = shape
        rank = one.a.shape[-2]
        assert one.a.shape == (*stack, rank, inputs) and one.b.shape == (*stack, outputs, rank)
        assert math.isfinite(one.scale) and np.isfinite(one.a).all() and np.isfinite(one.b).all()
        lengths = one.magnitude
        assert lengths is None or (lengths.shape == (outputs,) and np.isfinite(lengths).all())
    for name, value in found.weights.items():
        assert value.shape == shape_of(name.removesuffix(".weight"), base), name
        assert np.isfinite(value.astype(np.float32)).all(), name


def fuzz(count: int, seed: int, report: Report) -> Counter[str]:
    """Run `count` cases and return how many fell into each class. Failures go to `report`."""
    bases = [open_checkpoint(WITNESSES / name) for name in BASES]

    def run(number: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return run_case(number, Path(folder), bases)

    return tally(range(seed, seed + count), run, report)


if __name__ == "__main__":
    sys.exit(command("Fuzz the adapters' readers.", "folder", fuzz))
