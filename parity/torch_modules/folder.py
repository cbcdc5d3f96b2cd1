"""What of a model's folder transformers may be given: it would read more than is safe."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.architectures import architecture_names
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS, config_in
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.sharded import Shards
from lockstep.reference.checkpoint.strict_json import read_json_object

PAGE = "docs/parity/new-architecture.md"
EXTRA = "pip install 'lockstep-parity[transformers]'"
# Each would have transformers read other files than the ones that were checked here.
REFUSED = {
    "quantization": "packed weights: transformers would take the codes for numbers",
    "quantization_config": "packed weights: give a checkpoint of dense ones",
    "transformers_weights": "names a file of weights of its own",
}
ALSO_READ = (CONFIG, "generation_config.json")


def has_reference(model: str | Path) -> bool:
    """Say whether Lockstep has a reference file for a model; what it is not sure of, it has."""
    path = resolve_model(model)
    if is_gguf(path):
        return True
    name = config_of(path).get("model_type")
    return not isinstance(name, str) or name in architecture_names()


def has_transformers() -> bool:
    return find_spec("torch") is not None and find_spec("transformers") is not None


def config_of(folder: Path) -> dict[str, Any]:
    return read_json_object(config_in(folder), subject="config", limits=CONFIG_LIMITS)


def model_type(folder: Path) -> str:
    """Return the architecture's name as config.json spells it, escaped."""
    return show(config_of(folder).get("model_type"), 40)


def checked_folder(model: str | Path) -> Path:
    """Return a model's folder, all of whose files that transformers will read were looked at.

    Every safetensors file is validated, and no link leads out of the folder.
    Raises: InputError if it is none, or would lead to other files, to pickles or to packed weights.
    """
    path = resolve_model(model)
    if is_gguf(path):
        raise InputError(path, "is a GGUF file: transformers takes a folder of safetensors here")
    if not has_transformers():
        what = f"{model_type(path)} is run by transformers, which is not installed: {EXTRA}"
        raise InputError(path, what)
    if exists_in(path, "adapter_config.json"):
        what = "holds an adapter, whose base transformers would look for elsewhere; fuse it first"
        raise InputError(path, what)
    for name in ALSO_READ:
        if exists_in(path, name):
            file_in(path, name)
    refuse_other_files(config_of(path), path / CONFIG)
    Shards(path)
    return path


def refuse_other_files(config: dict[str, Any], source: Path) -> None:
    """Raise InputError for keys that lead to other weights, here or in a part's own config."""
    for key, value in config.items():
        if key in REFUSED and value not in (None, {}):
            raise InputError(source, f"{key}: {REFUSED[key]}")
        if isinstance(value, dict):
            refuse_other_files(value, source)


def require_reference(model: str | Path, command: str, instead: str) -> None:
    """Raise InputError if a command needs a reference file that this architecture has not."""
    if not has_reference(model):
        path = resolve_model(model)
        what = f"no reference file for {model_type(path)}, which {command} needs; {instead}: {PAGE}"
        raise InputError(path, what)
