"""Whole tensors that an adapter's file holds: PEFT's `modules_to_save`, and tables saved along."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from lockstep.reference.checkpoint.adapters.homes import HEAD, Base, home_of, tied_table
from lockstep.reference.checkpoint.adapters.placing import Names, check_floats
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile


def replaced(
    file: SafetensorsFile, parts: Mapping[str, Names], saved: Collection[str], base: Base
) -> dict[str, np.ndarray]:
    """Return the tensors that take the place of the base's, by the name of who uses them.

    A module of `modules_to_save` is a copy: with a tied head, the embedding and the head part. Any
    other table is the base's own, which PEFT saves along where a table is adapted: with a tied head
    it is both. Raises InputError for a module that is neither a table, a head nor a norm.
    """
    for one in saved:
        if not any(_ends_with(path, one) and "weight" in names for path, names in parts.items()):
            what = f"adapter_config.json has {show(one)} in modules_to_save"
            raise InputError(file.path, f"holds no weight of a module, but {what}")
    bases: dict[str, np.ndarray] = {}
    copies: dict[str, np.ndarray] = {}
    tied = tied_table(base)
    for path, names in parts.items():
        for part, name in names.items():
            module, value = _module(file, path, name, base), _read(file, name)
            if part == "weight" and any(_ends_with(path, one) for one in saved):
                _put(file, copies, f"{module}.weight", value, name)
                continue
            both = tied is not None and module in (tied, HEAD)
            for user in (tied, HEAD) if both else (module,):
                _put(file, bases, f"{user}.weight", value, name)
    return bases | copies


def _ends_with(path: str, end: str) -> bool:
    return f".{path}".endswith(f".{end}")


def _module(file: SafetensorsFile, path: str, name: str, base: Base) -> str:
    """Return whose weight a tensor is, and check its shape."""
    home = home_of(path, base, (0, 0))
    norm = next((one for one in _norms(path) if _is_norm(one, base)), None)
    if norm is not None:
        module, shape = norm, base.stored(f"{norm}.weight").shape
    elif home is not None and (home.modules[0] == HEAD or home.form == "table"):
        module, shape = home.modules[0], home.shape
    else:
        what = f"whole weight {show(name)}: only embeddings, heads and norms of the base are taken"
        raise InputError(file.path, what, f"base {base.path.name}")
    if file.entries[name].shape != shape:
        what = f"{show(name)} has shape {show(file.entries[name].shape, 40)}, but the base has "
        raise InputError(file.path, what + show(shape, 40), f"base {base.path.name}")
    check_floats(file, name)
    return module


def _norms(path: str) -> tuple[str, ...]:
    bare = path.removeprefix("model.").removeprefix("language_model.")
    return path, bare, f"model.{bare}", f"transformer.{bare}"


def _is_norm(module: str, base: Base) -> bool:
    return base.has(f"{module}.weight") and len(base.stored(f"{module}.weight").shape) == 1


def _read(file: SafetensorsFile, name: str) -> np.ndarray:
    value = file.read(name)
    if not np.isfinite(value.astype(np.float32)).all():
        raise InputError(file.path, f"{show(name)} holds values that are not finite")
    return value


def _put(
    file: SafetensorsFile, found: dict[str, np.ndarray], key: str, value: np.ndarray, name: str
) -> None:
    if key in found and not np.array_equal(found[key], value):
        what = f"two weights for {show(key)} of the base, and they differ"
        raise InputError(file.path, what, show(name))
    found[key] = value
