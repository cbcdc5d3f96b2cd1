"""A folder's model with its weights unpacked, for an engine that does not read MLX's packings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.parity.bench.gguf_copy import STORED, in_float32, room_for
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS
from lockstep.reference.checkpoint.folder import file_in
from lockstep.reference.checkpoint.sharded import SINGLE
from lockstep.reference.checkpoint.strict_json import read_json_object
from lockstep.reference.precision import dtype_named

TAGS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
SECTIONS = ("quantization", "quantization_config")


@contextmanager
def as_unpacked(
    path: Path, dtype: str, *, ignore_config: Collection[str]
) -> Iterator[tuple[Path, str]]:
    """Give a folder without packed weights, and what it is: itself, or a copy in `dtype`.

    Names are those of the hub. The copy is deleted afterwards.
    Raises: OSError if there is no room for it.
    """
    checkpoint = open_checkpoint(path, ignore_config=ignore_config)
    if not any(checkpoint.stored(name).packed for name in checkpoint.names):
        yield checkpoint.path, STORED
        return
    plan = {name: planned(checkpoint, name, dtype) for name in checkpoint.names}
    with room_for(sum(one.nbytes for one in plan.values())) as folder:
        config = read_json_object(
            file_in(checkpoint.path, CONFIG), subject="config", limits=CONFIG_LIMITS
        )
        dense = {key: value for key, value in config.items() if key not in SECTIONS}
        (folder / CONFIG).write_text(json.dumps(dense), encoding="utf-8")
        write_safetensors(folder / SINGLE, plan, metadata={"format": "pt"}, done=lambda name: None)
        yield folder, f"unpacked to {dtype}"


def planned(checkpoint: Checkpoint, name: str, dtype: str) -> Planned:
    shape = checkpoint.stored(name).shape
    return Planned(TAGS[dtype], shape, partial(numbers, checkpoint, name, dtype))


def numbers(checkpoint: Checkpoint, name: str, dtype: str) -> np.ndarray:
    """Return a tensor in a dtype, each number rounded once."""
    return in_float32(checkpoint.tensor(name)).astype(dtype_named(dtype))
