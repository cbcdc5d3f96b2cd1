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
from lockstep.parity.prompt_cache.loading import Loaded
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_scaling import context_length
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
    kind, told, slots = described(file, names.pop(), tokens, model)
    cache = model.make_cache(kind, **told)
    cache.positions.array = np.arange(len(tokens))[None]
    for name, ring in cache.positions.rings.items():
        cache.positions.rings[name] = ring.holding(slots)
    wanted = expected(model, kind, told)
    put = model.backend.put if hasattr(model, "backend") else np.asarray
    for layer in range(layers):
        for side, store in enumerate((cache.keys[layer], cache.values[layer])):
            arrays = parts(file, f"{layer}.{side}", len(slots))
            start = f"layers.{layer}.{('keys', 'values')[side]}."
            check(file, arrays, [one for name, one in wanted.items() if name.startswith(start)])
            store.restore(model.ops, [put(array) for array in arrays])
    return Loaded(cache, np.array([tokens], np.int64))


def described(
    file: SafetensorsFile, name: str | None, tokens: Sequence[int], model: Any
) -> tuple[str, dict[str, Any], np.ndarray]:
    """Return our name of a class, what it is told, and which token stands in which slot."""
    count = scalar(file, "0.2")
    if count != len(tokens) or not 0 < count <= context_length(model.config):
        what = f"holds {count} tokens, but {len(tokens)} are said"
        raise InputError(file.path, what)
    if name == "KVCache":
        return "growing", {}, np.arange(count)
    if name == "QuantizedKVCache":
        group, bits = scalar(file, "0.3"), scalar(file, "0.4")
        if bits not in AFFINE:
            raise InputError(file.path, f"has {bits} bits, but should have 8 or 4")
        if group != (64 if model.config.head_dim % 64 == 0 else 32):
            raise InputError(file.path, f"has groups of {group}, which heads here do not")
        return AFFINE[bits], {}, np.arange(count)
    keep, size, index = (scalar(file, f"0.{part}") for part in (3, 4, 5))
    if not (0 <= keep < size and index >= 0):
        raise InputError(file.path, f"keep={keep}, max_size={size}, index={index}")
    return "rotating-mlx-lm", {"size": size, "keep": keep}, ring(file, count, keep, index)


def ring(file: SafetensorsFile, count: int, keep: int, index: int) -> np.ndarray:
    """Return which token stands in which slot of a rotating buffer that goes on at `index`."""
    room = file.entries["0.0"].shape[2] if len(file.entries["0.0"].shape) == 4 else 0
    used = min(room, count)
    if used <= keep or index > used:
        return np.arange(used)
    rest = np.arange(count - (used - keep), count)  # in the order of the text
    return np.concatenate([np.arange(keep), np.roll(rest, index - keep)])


def parts(file: SafetensorsFile, name: str, count: int) -> list[np.ndarray]:
    """Return the arrays of a layer's keys or values, without the room behind them."""
    names = [name] if name in file.entries else [f"{name}.{part}" for part in range(3)]
    found = []
    for one in names:
        if one not in file.entries or len(file.entries[one].shape) != 4:
            raise InputError(file.path, f"tensor {show(one)} should be there with four axes")
        found.append(file.read(one)[:, :, :count])
    return found


def check(file: SafetensorsFile, arrays: list[np.ndarray], wanted: list[Any]) -> None:
    """Refuse arrays of another type or shape than one token of this model has."""
    found = [(one.shape[:2], one.shape[3:], one.dtype.name) for one in arrays]
    ours = [(shape[:2], shape[3:], NAMES[tag]) for shape, tag in wanted]
    if found != ours:
        raise InputError(file.path, f"holds {found}, but this model's cache {ours}")


NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U32": "uint32"}


def scalar(file: SafetensorsFile, name: str) -> int:
    """Return a number that mlx-lm has stored as an array without axes."""
    entry = file.entries.get(name)
    if entry is None or entry.shape != () or entry.dtype not in ("I32", "I64", "U32"):
        raise InputError(file.path, f"tensor {show(name)} should be a whole number")
    return int(file.read(name))
