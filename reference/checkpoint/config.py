"""config.json, parsed strictly: every key is used, ignored for a reason, or refused by name.

What the keys mean is the architecture's own affair: `architectures/` has a file for each.
Nothing that changes a number has a default that only one engine knows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.architectures import Architecture, Config, architecture_of
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import IGNORED, check_ignore, check_leftovers
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.generation import EOS
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
CONFIG_LIMITS = JsonLimits(size=1 << 20, entries=100_000, depth=16)


def config_in(folder: Path) -> Path:
    """Return the path of a folder's config.json, or raise InputError that says what else it has."""
    if exists_in(folder, CONFIG):
        return file_in(folder, CONFIG)
    raise InputError(folder / CONFIG, "no such file", _instead(folder))


def _instead(folder: Path) -> str | None:
    """Say what a folder without a config is likely to be meant for."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"its folder cannot be listed: {error.strerror}"
    if ADAPTER in names:
        return "it holds an adapter: give its base as the model, and this with --adapter"
    files = [name for name in names if name.lower().endswith(".gguf")]
    return f"a GGUF file is a model by itself: give {show(files[0], 40)}" if files else None


@dataclass(frozen=True)
class ParsedConfig:
    """A config, what config.json says of quantisation and of single tokens, and warnings."""

    architecture: Architecture
    config: Config
    path: Path
    quantization: Any
    quantization_config: Any
    eos_token_id: Any
    mask_token_id: Any
    warnings: list[str]


def end_of_text(fields: Fields) -> Any:
    """Return what config.json says, as it stands there, of the whole model or of its text part."""
    found = fields.get("eos_token_id")
    if found is None and isinstance(fields.raw.get("text_config"), dict):
        return fields.raw["text_config"].get(EOS)
    return found


def read_config(path: Path, *, ignore: Collection[str]) -> ParsedConfig:
    """Read config.json. Raises InputError naming the first key that is wrong or unknown."""
    raw = read_json_object(path, subject="config", limits=CONFIG_LIMITS)
    fields, warnings = Fields(raw, path), []
    architecture = architecture_of(fields)
    config = architecture.parse(fields, ignore, warnings)
    quantization = fields.get("quantization"), fields.get("quantization_config")
    check_ignore(ignore, fields.used, fields)
    eos = None if EOS in ignore else end_of_text(fields)
    check_leftovers(fields, ignore, warnings, IGNORED.keys() | architecture.ignored)
    mask = fields.raw.get("mask_token_id")  # a key of those architectures that let it pass
    return ParsedConfig(architecture, config, path, *quantization, eos, mask, warnings)
