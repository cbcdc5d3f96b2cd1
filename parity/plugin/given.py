"""What a test may give: a dump as a file, a capture or a mapping; a model as a folder or loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.dump import FORMAT, VERSION, Dump, open_dump
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.judging.judge import EPSILONS
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.model import Model, load

IN_MEMORY = Path("the port")


def dump_of(given: Any, *, tokens: Sequence[int] | None = None, dtype: str | None = None) -> Dump:
    """Return a dump of a path, a dump or a mapping from names to arrays of any framework.

    `tokens` and `dtype` are what it was made from and computed in, where it does not say so.
    Raises: InputError if it is none of these, or holds what no trace can.
    """
    if dtype is not None and dtype not in EPSILONS:
        raise InputError(show(dtype), f"is no dtype that is judged: {', '.join(EPSILONS)}")
    if isinstance(given, str | Path):
        dump = open_dump(given)
    elif isinstance(given, Dump):
        dump = given
    elif isinstance(given, Mapping):
        dump = of_mapping(given)
    else:
        what = "is no dump: give a path, a capture, or a mapping from names to arrays"
        raise InputError(show(type(given).__name__), what)
    said = {} if tokens is None else {"tokens": json.dumps([int(token) for token in tokens])}
    said |= {} if dtype is None else {"dtype": dtype}
    return replace(dump, about={**dump.about, **said}) if said else dump


def of_mapping(given: Mapping[str, Any], about: Mapping[str, str] | None = None) -> Dump:
    tensors = {name: to_numpy(value) for name, value in given.items()}
    if not tensors:
        raise InputError(IN_MEMORY, "holds no tensors, so there is nothing to compare")
    for name, array in tensors.items():
        if array.dtype.name not in TAGS:
            raise InputError(IN_MEMORY, f"holds {array.dtype}, which no trace can", name)
    shapes = {name: tuple(array.shape) for name, array in tensors.items()}
    said = {"format": FORMAT, "version": VERSION, **(about or {})}
    return Dump(IN_MEMORY, shapes, tensors.__getitem__, said)


def model_of(given: Any, adapter: str | Path | None = None) -> Model:
    """Return a reference model, loaded from a path if it is one. Raises: InputError."""
    if not isinstance(given, Model):
        return load(given, adapter)
    return given if adapter is None else given.with_adapter(adapter)


def reference_dump(model: Model, tokens: Sequence[int]) -> Dump:
    """Return all taps of the reference on one prompt, in memory."""
    kept: dict[str, np.ndarray] = {}

    def keep(name: str, value: Any) -> None:
        kept[name] = np.array(to_numpy(value))

    model.forward([list(tokens)], trace=keep)
    said = {"tokens": json.dumps(list(map(int, tokens))), "dtype": model.dtype}
    dump = of_mapping(kept, {**said, "backend": "reference"})
    return replace(dump, path=Path("the reference"))
