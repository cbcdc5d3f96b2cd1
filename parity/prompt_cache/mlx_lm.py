"""Prompt caches that mlx-lm has saved, as ours: the same keys and values, to the bit.

mlx-lm 0.32 writes safetensors: a tensor "layer.index" for each part of a cache's state, "0.KEY" in
the header for what the user added, and "1.layer" for the class. It says nothing of tokens or
weights, so both are the caller's word. mlx-lm's arrays have room behind the tokens; ours do not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.prompt_cache.layout import expected
from lockstep.parity.prompt_cache.loading import Loaded, held
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_scaling import context_length, steady_length
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

CLASSES = ("KVCache", "RotatingKVCache", "QuantizedKVCache")
AFFINE = {8: "affine8", 4: "affine4"}


def load_mlx_lm_cache(path: str | Path, model: Any, tokens: Sequence[int]) -> Loaded:
    """Return a cache that mlx-lm has saved after reading `tokens` with the same model.

    Raises: InputError if it holds another number of tokens, several kinds of layers, a kind that
    is not here, or arrays of other shapes and types than this model's.
    """
    file = SafetensorsFile(path)
    layers = model.config.num_hidden_layers
    names = {file.metadata.get(f"1.{layer}") for layer in range(layers)}
    if len(names) != 1 or f"1.{layers}" in file.metadata or not names <= {*CLASSES}:
        found = ", ".join(sorted(show(name, 30) for name in names))
        what = f"holds {found}, but should hold {layers} of one of {', '.join(CLASSES)}"
        raise InputError(path, what)
    kind, told, slots = described_alike(file, names.pop(), tokens, model)
    cache = model.make_cache(kind, **told)
    cache.positions.take(np.arange(len(tokens))[None])
    for name, ring in cache.positions.rings.items():
        ring = held(file, "its slots", ring.holding(slots), cache.positions)
        cache.positions.rings[name] = ring
    wanted = expected(model, kind, told)
    for layer in range(layers):
        for side, store in enumerate((cache.keys[layer], cache.values[layer])):
            arrays = parts(file, f"{layer}.{side}", len(slots))
            start = f"layers.{layer}.{('keys', 'values')[side]}."
            ours = [one for name, one in wanted.items() if name.startswith(start)]
            check(file, f"{layer}.{side}", arrays, ours, len(slots))
            store.restore(model.ops, [model.put(array) for array in arrays])
    return Loaded(cache, np.array([tokens], np.int64), steady_length(model.config))


Described = tuple[str, dict[str, Any], np.ndarray]


def described_alike(
    file: SafetensorsFile, name: str | None, tokens: Sequence[int], model: Any
) -> Described:
    """Return what every layer says of itself. Raises: InputError if one says something else."""
    layers = range(model.config.num_hidden_layers)
    first, *others = (described(file, name, layer, tokens, model) for layer in layers)
    for layer, other in enumerate(others, 1):
        if other[:2] != first[:2] or other[2].tolist() != first[2].tolist():
            raise InputError(file.path, f"layer {layer} does not hold what layer 0 holds")
    return first


def described(
    file: SafetensorsFile, name: str | None, layer: int, tokens: Sequence[int], model: Any
) -> Described:
    """Return our name of a class, what it is told, and which token stands in which slot."""
    count = scalar(file, f"{layer}.2")
    if count != len(tokens) or not 0 < count <= context_length(model.config):
        what = f"layer {layer} holds {count} tokens, but {len(tokens)} are said"
        raise InputError(file.path, what)
    if name == "KVCache":
        return "growing", {}, np.arange(count)
    if name == "QuantizedKVCache":
        group, bits = scalar(file, f"{layer}.3"), scalar(file, f"{layer}.4")
        if bits not in AFFINE:
            raise InputError(file.path, f"has {bits} bits, but should have 8 or 4")
        if group != (64 if model.config.head_dim % 64 == 0 else 32):
            raise InputError(file.path, f"has groups of {group}, which heads here do not")
        return AFFINE[bits], {}, np.arange(count)
    keep, size, index = (scalar(file, f"{layer}.{part}") for part in (3, 4, 5))
    used = min(room(file, layer), count)
    if not (0 <= keep < size and min(keep, used) <= index <= used):
        what = f"layer {layer} says keep={keep}, max_size={size}, index={index} of {used} slots"
        raise InputError(file.path, what)
    return "rotating-mlx-lm", {"size": size, "keep": keep}, ring(used, count, keep, index)


def room(file: SafetensorsFile, layer: int) -> int:
    """Return how many slots a layer's keys and values have. Raises: InputError if not as many."""
    names = (f"{layer}.0", f"{layer}.1")
    keys, values = (four_axes(file, name)[2] for name in names)
    if keys != values:
        what = f"layer {layer} has {keys} slots of keys, but {values} of values"
        raise InputError(file.path, what)
    return keys


def ring(used: int, count: int, keep: int, index: int) -> np.ndarray:
    """Return which token stands in which slot of a rotating buffer that goes on at `index`."""
    if used <= keep:
        return np.arange(used)
    rest = np.arange(count - (used - keep), count)  # in the order of the text
    return np.concatenate([np.arange(keep), np.roll(rest, index - keep)])


def parts(file: SafetensorsFile, name: str, count: int) -> list[np.ndarray]:
    """Return the arrays of a layer's keys or values, without the room behind them."""
    names = [name] if name in file.entries else [f"{name}.{part}" for part in range(3)]
    for one in names:
        four_axes(file, one)
    return [file.read(one)[:, :, :count] for one in names]


def four_axes(file: SafetensorsFile, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor. Raises: InputError if it is missing or has not four axes."""
    entry = file.entries.get(name)
    if entry is None or len(entry.shape) != 4:
        raise InputError(file.path, f"tensor {show(name)} should be there with four axes")
    return entry.shape


def check(
    file: SafetensorsFile, name: str, arrays: list[np.ndarray], wanted: list[Any], count: int
) -> None:
    """Refuse arrays of another type or shape than `count` tokens of this model have."""
    found = [(one.shape, one.dtype.name) for one in arrays]
    ours = [((*shape[:2], count, *shape[3:]), NAMES[tag]) for shape, tag in wanted]
    if found != ours:
        what = f"tensor {show(name)} holds {found}, but this model's cache {ours}"
        raise InputError(file.path, what)


NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U32": "uint32"}


def scalar(file: SafetensorsFile, name: str) -> int:
    """Return a number that mlx-lm has stored as an array without axes."""
    entry = file.entries.get(name)
    if entry is None or entry.shape != () or entry.dtype not in ("I32", "I64", "U32"):
        raise InputError(file.path, f"tensor {show(name)} should be a whole number")
    return int(file.read(name))
