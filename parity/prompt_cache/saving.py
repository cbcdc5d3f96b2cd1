"""Write a cache to a file: what is held, as it is held. Codes stay codes."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.prompt_cache.identity import identity, rank_of
from lockstep.parity.prompt_cache.layout import FORMAT, TAG_OF, VERSION, in_order, parts
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.cooling import Cooling


def save_cache(path: str | Path, model: Any, cache: Cache, tokens: Any) -> None:
    """Write what `cache` holds of `tokens`, (S,) or (B, S), which `model` has read.

    The file appears whole or not at all. Raises: InputError if the tokens are not those of the
    cache by their number, if they were not read in order, or if it cannot be written.
    """
    path, ids = Path(path), np.atleast_2d(np.asarray(tokens, np.int64))
    held = cache.positions.whole()
    if held is None or held.shape != ids.shape:
        found = "nothing" if held is None else f"tokens of shape {held.shape}"
        raise InputError(path, f"the cache holds {found}, but tokens of shape {ids.shape} are said")
    if not in_order(held):
        raise InputError(path, "the cache cannot be saved: its tokens were not read in order")
    cache.settle(model.ops)
    tensors = {"tokens": ids, "positions": held}
    keep = {kind: ring.slots < held.shape[1] for kind, ring in cache.positions.rings.items()}
    for kind, ring in cache.positions.rings.items():  # slots of forgotten tokens are left out
        tensors[f"rings.{kind}.slots"] = ring.slots[keep[kind]]
    for name, array in parts(cache):
        live = keep.get(cache.kinds[int(name.split(".")[1])])
        tensors[name] = array if live is None else array[:, :, live]
    write(path, tensors, about(model, cache))


def coded(cache: Cache) -> int | None:
    """Return how many tokens of a turbo cache are codes; None for any other cache."""
    counts = [store.coded for store in cache.keys if isinstance(store, Cooling)]
    return max(counts) if counts else None


def about(model: Any, cache: Cache) -> dict[str, str]:
    """Return what the header says of a cache."""
    said = {
        "format": FORMAT,
        "version": VERSION,
        "model": identity(model),
        "architecture": model.checkpoint.architecture,
        "dtype": model.dtype if isinstance(model.dtype, str) else str(model.dtype),
        "kind": cache.name,
    }
    if (rank := rank_of(model)) is not None:
        said["rank"] = rank
    told = vars(cache.options) | {"coded": coded(cache)}
    return said | {key: str(value) for key, value in told.items() if value is not None}


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write beside `path` and put the whole in its place."""
    plan = {
        name: Planned(TAG_OF[array.dtype.name], array.shape, lambda array=array: array)
        for name, array in tensors.items()
    }
    part = path.with_name(f".{path.name}.lockstep-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        write_safetensors(part, plan, metadata=metadata, done=lambda name: None)
        part.replace(path)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise InputError(path, f"cannot be written: {what}") from None
    finally:
        part.unlink(missing_ok=True)
