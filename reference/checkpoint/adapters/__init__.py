"""Adapters: small trained changes to the projections of a model, one format a file.

Whatever a file holds, an `Adapter` is in the layout of Hugging Face with its factor worked out.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from lockstep.reference.checkpoint.adapters.adapter import Adapted, Adapter, Adapters
from lockstep.reference.checkpoint.adapters.homes import HEAD, Base, tied_table
from lockstep.reference.checkpoint.adapters.placing import Names, grouped, placed
from lockstep.reference.checkpoint.adapters.replacing import replaced
from lockstep.reference.checkpoint.config_keys import names_of
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.checkpoint.sharded import PICKLES

__all__ = ["HEAD", "Adapted", "Adapter", "Adapters", "open_adapter", "tied_table"]

# The file of the weights, and the module that reads the format.
FORMATS = {"adapters.safetensors": "mlx_lm", "adapter_model.safetensors": "peft"}
CONFIG = "adapter_config.json"


def open_adapter(path: str | Path, base: Base, *, ignore_config: Collection[str] = ()) -> Adapters:
    """Read an adapter of mlx-lm or of PEFT for the checkpoint `base`.

    `ignore_config` lists unknown keys of adapter_config.json that may pass. Raises InputError for
    anything that is missing, unknown, inconsistent or not finite, for what is not supported, and
    for an adapter that fits no module of `base`. Nothing that the config names is opened.
    """
    folder = resolve_model(path)
    if is_gguf(folder):
        raise InputError(folder, "is a GGUF file: adapters of mlx-lm and of PEFT are read")
    found = [name for name in FORMATS if exists_in(folder, name)]
    if len(found) != 1:
        raise InputError(folder, f"{_nothing(folder)}" if not found else f"holds {_both()}")
    module = import_module(f"lockstep.reference.checkpoint.adapters.{FORMATS[found[0]]}")
    warnings: list[str] = []
    rules = module.read_rules(file_in(folder, CONFIG), names_of(ignore_config), warnings)
    file = SafetensorsFile(file_in(folder, found[0]))
    warnings += [f"{file.path.name}: {text}" for text in file.warnings]
    parts = grouped(file, module.part_of)
    modules = placed(file, rules, _with(parts, ("a", "b", "magnitude")), base)
    if module.TIES and (table := tied_table(base)) in modules:
        modules[HEAD] = modules[table]
    weights = replaced(file, _with(parts, ("weight", "base")), rules.saved, base)
    return Adapters(folder, modules, weights, tuple(warnings))


def _with(parts: dict[str, Names], kinds: Collection[str]) -> dict[str, Names]:
    """Return what modules have of some parts, without those that have none of them."""
    found: dict[str, Names] = {}
    for path, names in parts.items():
        chosen: Names = {part: name for part, name in names.items() if part in kinds}
        found |= {path: chosen} if chosen else {}
    return found


def _both() -> str:
    return " and ".join(FORMATS) + ", but should hold one of them"


def _nothing(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"cannot be listed: {error.strerror}"
    for name in names:
        if name.endswith(PICKLES):
            return f"holds no adapter; {show(name, 60)} is a pickle, which is never read"
    return f"holds no adapter: neither {' nor '.join(FORMATS)}"
