"""Write a model with an adapter inside: the base's folder again, the adapted weights changed."""

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.parity.fusing.tensors import Fusion
from lockstep.parity.model_files import copy_model_files
from lockstep.parity.new_folder import check_new_folder, new_folder
from lockstep.parity.progress import Progress
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.adapters import Adapters, open_adapter
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.folder import file_in
from lockstep.reference.checkpoint.quantization import spellings
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.sharded import SINGLE, Shards
from lockstep.reference.checkpoint.strict_json import read_json_object

SECTIONS = ("quantization", "quantization_config")


def fuse(
    model: str | Path, adapter: str | Path, target: str | Path, *,
    ignore_config: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Write the folder `target`: a base whose weights hold the adapter's update.

    Names and layout of the tensors are those of the base's files. A dense weight keeps its dtype; a
    packed one becomes dense in the dtype of its scales (bfloat16 where these are bytes, which holds
    every value of such codes). All else is copied as it is, also modules whose update is zero.
    Raises: InputError for what cannot be read or fused. The folder appears whole, or not at all.
    """
    if is_gguf(resolve_model(model)):
        raise InputError(resolve_model(model), "is a GGUF file: folders of safetensors are fused")
    base = open_checkpoint(model, ignore_config=ignore_config)
    adapters = open_adapter(adapter, base, ignore_config=ignore_config)
    whole = check_new_folder(Path(target), [base.path, resolve_model(adapter)])
    shards = Shards(base.path)
    fusion = Fusion(base, {name: stored(shards, name) for name in shards.names})
    changed = fusion.include(adapters)
    with new_folder(whole) as folder, Progress(len(fusion.plan)) as progress:
        copy_model_files(base.path, folder)
        write_config(base.path, folder, fusion)
        metadata = {"format": "pt"}  # transformers asks for it
        write_safetensors(folder / SINGLE, fusion.plan, metadata=metadata, done=progress)
    return described(fusion, adapters, target, changed)


def stored(shards: Shards, name: str) -> Planned:
    """Plan a tensor as it is."""
    entry = shards.entry(name)
    return Planned(entry.dtype, entry.shape, partial(shards.read, name))


def write_config(base: Path, target: Path, fusion: Fusion) -> None:
    """Say in the config that modules are packed no longer, or the head no longer tied, if so."""
    if fusion.unpacked or fusion.untied:
        config = config_without(file_in(base, CONFIG), fusion.unpacked, untied=fusion.untied)
        text = json.dumps(config, indent=2)
        (target / CONFIG).write_text(text + "\n", encoding="utf-8")


def config_without(path: Path, unpacked: list[str], *, untied: bool = False) -> dict[str, Any]:
    """Return a config that says of each of these modules that it is not packed, and of the tie."""
    config = read_json_object(path, subject="config", limits=CONFIG_LIMITS)
    for section in (config[key] for key in SECTIONS if isinstance(config.get(key), dict)):
        for module in unpacked:
            section |= dict.fromkeys([s for s in spellings(module) if s in section], False)
            section[module] = False
    if untied:
        config["tie_word_embeddings"] = False
    return config


def described(
    fusion: Fusion, adapters: Adapters, target: str | Path, changed: Collection[str]
) -> dict[str, Any]:
    """Return what was done, for a person and for a program."""
    return {
        "target": str(target),
        "base": str(fusion.base.path),
        "adapter": str(adapters.path),
        "fused": list(changed),
        "unpacked": fusion.unpacked,
        "untied": fusion.untied,
        "without_effect": [name for name in adapters.modules if name not in changed],
        "tensors": len(fusion.plan),
        "bytes": sum(one.nbytes for one in fusion.plan.values()),
        "warnings": [*fusion.base.warnings, *adapters.warnings],
    }
