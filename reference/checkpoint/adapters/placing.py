"""From the tensors of an adapter's file to the modules of the base that they change.

Everything about shapes is checked on the header, before any data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lockstep.reference.checkpoint.adapters.adapter import Adapter
from lockstep.reference.checkpoint.adapters.homes import Base, Form, Home, home_of
from lockstep.reference.checkpoint.adapters.stacking import stacked
from lockstep.reference.checkpoint.dtypes import FLOATS
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

# "weight" takes the place of a module's matrix; "base" is the base's own, saved along.
Part = Literal["a", "b", "magnitude", "weight", "base"]
Names = dict[Part, str]


@dataclass(frozen=True)
class Layout:
    """How a format holds the two matrices of one form of module.

    `shapes` gives those of a and b in the file for a rank and the shape of the base's matrix;
    `turned` brings what was read to (R, K) and (N, R), or to those of a stack.
    """

    shapes: Callable[[int, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
    turned: Callable[[Any, Any, Home], tuple[Any, Any]]


@dataclass(frozen=True)
class Rules:
    """What a config says of a module: its rank, its factor, and whether rows have lengths.

    `saved` are the modules that the file holds whole, by the ends of their paths.
    """

    rank: Callable[[str], int]
    scale: Callable[[str], float]
    dora: bool
    layouts: Mapping[Form, Layout]
    saved: tuple[str, ...] = ()


def placed(
    file: SafetensorsFile, rules: Rules, parts: Mapping[str, Names], base: Base
) -> dict[str, Adapter]:
    """Return the adapter of each module of the base that the file changes.

    Raises InputError if a module is not whole, not there, or of another shape.
    """
    homes = _homes(file, parts, base)
    for path, names in parts.items():
        _check_whole(file, path, names, rules, homes[path])
        _check_shapes(file, names, rules, homes[path])
    found: dict[str, Adapter] = {}
    single: dict[str, dict[int, Adapter]] = {}
    for path, names in parts.items():
        home = homes[path]
        adapter = _read(file, names, rules, home)
        if home.expert is not None:
            single.setdefault(home.modules[0], {})[home.expert] = adapter
        elif len(home.modules) == 1:
            found[home.modules[0]] = adapter
        else:  # the rows of gate above those of up; both have the same a
            for module, b in zip(home.modules, np.split(adapter.b, 2, axis=1), strict=True):
                found[module] = Adapter(adapter.a, np.ascontiguousarray(b), adapter.scale, None)
    for module, experts in single.items():
        found[module] = stacked(experts, base.stored(f"{module}.weight").shape)
    return found


def grouped(
    file: SafetensorsFile, part_of: Callable[[str], tuple[str, Part] | None]
) -> dict[str, Names]:
    """Return the tensors of each module, by the path that the file gives it.

    `part_of` takes the name of a tensor apart: the path of its module, and which part it is.
    Raises InputError if a tensor is left over, or there is none at all.
    """
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
        raise InputError(file.path, what, "learned biases are not supported")
    if not parts:
        raise InputError(file.path, "adapter changes no weights: the file holds no tensor")
    return parts


def _homes(file: SafetensorsFile, parts: Mapping[str, Names], base: Base) -> dict[str, Home]:
    """Find each module in the base; two may not be the same one."""
    homes, lost = {}, []
    for path, names in parts.items():
        home = home_of(path, base, _sizes(file, names))
        if home is None:
            lost.append(path)
        else:
            homes[path] = home
    if lost:
        none = "adapter changes no weights of the base" if not homes else "does not match the base"
        what = f"{none}: it has no projection {show_names(lost)}"
        raise InputError(file.path, what, f"base {base.path.name}")
    taken = [(module, home.expert) for home in homes.values() for module in home.modules]
    whole = {module for module, expert in taken if expert is None}
    mixed = any(module in whole for module, expert in taken if expert is not None)
    if len(set(taken)) < len(taken) or mixed:
        raise InputError(file.path, f"two modules are one in the base: {show_names(sorted(homes))}")
    return homes


def _sizes(file: SafetensorsFile, names: Names) -> tuple[int, int]:
    """Return the outputs and the inputs of a pair, as PEFT lays them."""
    a, b = (file.entries[names[part]].shape if part in names else () for part in ("a", "b"))
    return (b[0] if b else 0), (a[-1] if a else 0)


def _check_whole(file: SafetensorsFile, path: str, names: Names, rules: Rules, home: Home) -> None:
    if rules.dora and (home.form != "projection" or home.expert is not None):
        what = f"DoRA of {show(path)} is not supported: projections alone have rows with lengths"
        raise InputError(file.path, what)
    wanted: set[Part] = {"a", "b", "magnitude"} if rules.dora else {"a", "b"}
    if names.keys() == wanted:
        return
    has = ", ".join(sorted(names.values()))
    kind = "DoRA needs both matrices and a magnitude" if rules.dora else "LoRA needs two matrices"
    what = f"adapter of {show(path)} is not whole: {kind}, it has {show(has, 90)}"
    raise InputError(file.path, what)


def _check_shapes(file: SafetensorsFile, names: Names, rules: Rules, home: Home) -> None:
    rank = rules.rank(home.asked)
    if home.expert is not None and rank > min(home.shape):  # a stack of these could be any size
        what = f"rank {rank} of one expert is more than its matrix has, {show(home.shape, 40)}"
        raise InputError(file.path, what, show(home.asked))
    right = rules.layouts[home.form].shapes(rank, home.shape)
    shapes = {"a": right[0], "b": right[1], "magnitude": home.shape[:1]}
    for part, name in names.items():
        entry = file.entries[name]
        if entry.shape != shapes[part]:
            what = f"{show(name)} has shape {show(entry.shape, 40)}, but should have "
            raise InputError(file.path, what + show(shapes[part], 40), _where(rank, home))
        check_floats(file, name)


def _where(rank: int, home: Home) -> str:
    outputs, inputs = home.shape[-2:]
    if home.form == "table":
        return f"rank {rank} on a table of {outputs} rows of {inputs}"
    experts = f"{home.shape[0]} experts of " if home.form == "experts" else ""
    return f"rank {rank} on a base of {experts}{outputs} outputs and {inputs} inputs"


def check_floats(file: SafetensorsFile, name: str) -> None:
    """Raise InputError if a tensor holds no floats."""
    dtype = file.entries[name].dtype
    if dtype not in FLOATS:
        what = f"{show(name)} has dtype {dtype}, {', '.join(FLOATS)} are read"
        raise InputError(file.path, what)


def _read(file: SafetensorsFile, names: Names, rules: Rules, home: Home) -> Adapter:
    values: dict[Part, np.ndarray] = {}
    for part, name in names.items():
        with np.errstate(over="ignore"):  # what float32 cannot hold is no adapter either
            value = file.read(name).astype(np.float32)
        if not np.isfinite(value).all():
            raise InputError(file.path, f"{show(name)} holds values that are not finite")
        values[part] = value
    a, b = rules.layouts[home.form].turned(values["a"], values["b"], home)
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return Adapter(a, b, rules.scale(home.asked), values.get("magnitude"))
