"""A checkpoint of random bits in MLX's 4 bits: as large as one likes, written as fast as they come.

Nothing is quantised: the codes are drawn, and scales and offsets are such that products keep the
size of what they take. A gate of such experts chooses at random, so each is visited as often as any
other. Experts of trained models are not, and come back sooner.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.architectures import Architecture, architecture_of
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.sources import Source
from lockstep.reference.precision import dtype_named

BITS, GROUP = 4, 64
SPREAD = ((4**BITS - 1) / 12) ** 0.5  # the standard deviation of codes that are equally likely
BFLOAT16 = dtype_named("bfloat16")
Shape = tuple[int, ...]


def write_random_bits(
    folder: Path, config: Mapping[str, Any], done: Callable[[str], object]
) -> None:
    """Write config.json and model.safetensors into a folder, calling `done` for each tensor."""
    quantization = {"group_size": GROUP, "bits": BITS, "mode": "affine"}
    plan = {name: tensor for name, shape in stored(config) for name, tensor in parts(name, shape)}
    write_safetensors(folder / "model.safetensors", plan, metadata={"format": "mlx"}, done=done)
    text = json.dumps({**config, "quantization": quantization}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def stored(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Yield the name and shape of each tensor that a file of this model holds, before packing."""
    architecture, parsed = read(config)
    sources = architecture.sources(parsed, {})
    for name, shape in architecture.tensors(parsed).items():
        source = sources.get(name, Source((name,)))
        for each in source.names:
            yield each, source.stored_shape(shape)


def read(config: Mapping[str, Any]) -> tuple[Architecture, Any]:
    fields = Fields(dict(config), Path("config.json"))
    architecture = architecture_of(fields)
    return architecture, architecture.parse(fields, (), [])


def parts(name: str, shape: Shape) -> Iterator[tuple[str, Planned]]:
    """Yield what a tensor is stored as: a matrix as codes, scales and offsets, others whole."""
    if len(shape) == 1 or shape[-1] % GROUP:
        yield name, Planned("BF16", shape, partial(around_one, name, shape))
        return
    module, groups = name.removesuffix(".weight"), (*shape[:-1], shape[-1] // GROUP)
    codes = (*shape[:-1], shape[-1] * BITS // 32)
    step = shape[-1] ** -0.5 / SPREAD
    yield f"{module}.weight", Planned("U32", codes, partial(bits, name, codes))
    yield f"{module}.scales", Planned("BF16", groups, partial(constant, step, groups))
    offset = -step * (2**BITS - 1) / 2
    yield f"{module}.biases", Planned("BF16", groups, partial(constant, offset, groups))


def bits(name: str, shape: Shape) -> np.ndarray:
    """Draw codes by the tensor's name."""
    rng = np.random.default_rng(crc32(name.encode()))
    return np.frombuffer(rng.bytes(4 * int(np.prod(shape))), np.uint32).reshape(shape)


def around_one(name: str, shape: Shape) -> np.ndarray:
    rng = np.random.default_rng(crc32(name.encode()))
    return (1 + 0.1 * rng.standard_normal(shape)).astype(BFLOAT16)


def constant(value: float, shape: Shape) -> np.ndarray:
    return np.full(shape, value, BFLOAT16)
