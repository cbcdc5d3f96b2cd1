"""From the tensors of an adapter's file to the modules of the base that they change.

Everything about shapes is checked on the header, before any data is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from lockstep.reference.checkpoint.adapters.adapter import Adapter
from lockstep.reference.checkpoint.dtypes import FLOATS
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

Part = Literal["a", "b", "magnitude"]
Names = dict[Part, str]
# A projection of a layer: embeddings and heads are looked up by other means than `Run.linear`.
IN_A_LAYER = re.compile(r".+\.[0-9]+\..+")
PREFIXES = ("", "model.", "transformer.")
WRAPPERS = ("language_model.", "model.")


class Stored(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class Base(Protocol):
    """What is asked of the checkpoint that is adapted."""

    @property
    def path(self) -> Path: ...
    def has(self, name: str) -> bool: ...
    def stored(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Rules:
    """What a config says of a module: its rank, its factor, and whether rows have lengths.

    `flipped` says that the file holds both matrices transposed.
    """

    rank: Callable[[str], int]
    scale: Callable[[str], float]
    dora: bool
    flipped: bool


def placed(
    file: SafetensorsFile,
    rules: Rules,
    part_of: Callable[[str], tuple[str, Part] | None],
    base: Base,
) -> dict[str, Adapter]:
    """Return the adapter of each module of the base that the file changes.

    `part_of` takes the name of a tensor apart: the path of its module, and which part it is.
    Raises InputError if a tensor is left over, or a module is not whole, not there, or of another
    shape, or if there is nothing at all.
    """
    parts = _grouped(file, part_of)
    if not parts:
        raise InputError(file.path, "adapter changes no weights: the file holds no tensor")
    homes = _homes(file, parts, base)
    for path, names in parts.items():
        _check_whole(file, path, names, rules)
        _check_shapes(file, names, rules.rank(path), rules.flipped, base, homes[path])
    return {homes[path]: _read(file, path, names, rules) for path, names in parts.items()}


def _grouped(
    file: SafetensorsFile, part_of: Callable[[str], tuple[str, Part] | None]
) -> dict[str, Names]:
    parts: dict[str, Names] = {}
    unknown = []
    for name in file.entries:
        found = part_of(name)
        if found is None:
            unknown.append(name)
            continue
        path, part = found
        if part in parts.setdefault(path, {}):
            twins = show_names([parts[path][part], name])
            raise InputError(file.path, f"two tensors for one part of a module: {twins}")
        parts[path][part] = name
    if unknown:
        what = f"tensors that are no part of a LoRA or DoRA projection: {show_names(unknown)}"
        raise InputError(file.path, what, "biases, embeddings and whole weights are not supported")
    return parts


def _homes(file: SafetensorsFile, parts: dict[str, Names], base: Base) -> dict[str, str]:
    """Find each module in the base; two may not be the same one."""
    homes = {path: home for path in parts if (home := home_of(path, base)) is not None}
    if lost := [path for path in parts if path not in homes]:
        none = "adapter changes no weights of the base" if not homes else "does not match the base"
        what = f"{none}: it has no projection {show_names(lost)}"
        raise InputError(file.path, what, f"base {base.path.name}")
    if len(set(homes.values())) < len(homes):
        raise InputError(file.path, f"two modules are one in the base: {show_names(sorted(homes))}")
    return homes


def home_of(path: str, base: Base) -> str | None:
    """Return the base's own name of a module, which may have another prefix, or None."""
    for candidate in _spellings(path):
        name = f"{candidate}.weight"
        if IN_A_LAYER.fullmatch(candidate) and base.has(name):
            return candidate if len(base.stored(name).shape) == 2 else None
    return None


def _spellings(path: str) -> Iterator[str]:
    bare = path
    for wrapper in WRAPPERS:
        yield bare
        bare = bare.removeprefix(wrapper)
    yield from (prefix + bare for prefix in PREFIXES)


def _check_whole(file: SafetensorsFile, path: str, names: Names, rules: Rules) -> None:
    wanted: set[Part] = {"a", "b", "magnitude"} if rules.dora else {"a", "b"}
    if names.keys() == wanted:
        return
    has = ", ".join(sorted(names.values()))
    kind = "DoRA needs both matrices and a magnitude" if rules.dora else "LoRA needs two matrices"
    what = f"adapter of {show(path)} is not whole: {kind}, it has {show(has, 90)}"
    raise InputError(file.path, what)


def _check_shapes(
    file: SafetensorsFile, names: Names, rank: int, flipped: bool, base: Base, home: str
) -> None:
    outputs, inputs = base.stored(f"{home}.weight").shape
    shapes = {"a": (rank, inputs), "b": (outputs, rank), "magnitude": (outputs,)}
    for part, name in names.items():
        entry = file.entries[name]
        shape = entry.shape[::-1] if flipped else entry.shape
        if shape != shapes[part]:
            right = shapes[part][::-1] if flipped else shapes[part]
            what = f"{show(name)} has shape {show(entry.shape, 40)}, but should have "
            where = f"rank {rank} on a base of {outputs} outputs and {inputs} inputs"
            raise InputError(file.path, what + show(right, 40), where)
        if entry.dtype not in FLOATS:
            what = f"{show(name)} has dtype {entry.dtype}, {', '.join(FLOATS)} are read"
            raise InputError(file.path, what)


def _read(file: SafetensorsFile, path: str, names: Names, rules: Rules) -> Adapter:
    values: dict[Part, np.ndarray] = {}
    for part, name in names.items():
        with np.errstate(over="ignore"):  # what float32 cannot hold is no adapter either
            value = file.read(name).astype(np.float32)
        if not np.isfinite(value).all():
            raise InputError(file.path, f"{show(name)} holds values that are not finite")
        values[part] = np.ascontiguousarray(value.T) if rules.flipped else value
    return Adapter(values["a"], values["b"], rules.scale(path), values.get("magnitude"))
