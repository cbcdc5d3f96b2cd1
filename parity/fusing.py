"""Write a model with an adapter inside: the base's folder again, the adapted weights changed."""

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.fused_weight import changes, fused_weight
from lockstep.parity.new_folder import check_new_folder, new_folder
from lockstep.parity.progress import Progress
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.adapters import Adapter, Adapters, open_adapter
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.quantization import spellings
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.sharded import SINGLE, Shards
from lockstep.reference.checkpoint.strict_json import read_json_object

# What goes with the weights: all that a folder of the hub holds for tokenizers and generation.
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
COPY_LIMIT = 1 << 28
SECTIONS = ("quantization", "quantization_config")
Plan = dict[str, Planned]


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
    changed = {name: one for name, one in adapters.modules.items() if changes(one)}
    plan, unpacked = planned(base, shards, changed)
    with new_folder(whole) as folder, Progress(len(plan)) as progress:
        copy_files(base.path, folder, unpacked)
        metadata = {"format": "pt"}  # transformers asks for it
        write_safetensors(folder / SINGLE, plan, metadata=metadata, done=progress)
    return described(base, adapters, target, plan, changed, unpacked)


def planned(
    base: Checkpoint, shards: Shards, changed: Mapping[str, Adapter]
) -> tuple[Plan, list[str]]:
    """Return the tensors to write, and the modules of the files that are no longer packed."""
    plan: Plan = {}
    for name in shards.names:
        entry = shards.entry(name)
        plan[name] = Planned(entry.dtype, entry.shape, partial(shards.read, name))
    unpacked = []
    for path, adapter in changed.items():
        name, stored = f"{path}.weight", base.stored(f"{path}.weight")
        source = base.source(name)
        if source.stacked or source.half is not None:
            what = f"weight {show(name)} is a part of another tensor and cannot be fused"
            raise InputError(base.path, what)
        dtype = "BF16" if stored.scale_dtype == "U8" else stored.scale_dtype or stored.dtype
        make = partial(_made, base, name, adapter, dtype, source.transposed)
        plan[source.names[0]] = Planned(dtype, source.stored_shape(stored.shape), make)
        if stored.packed:
            unpacked += source.modules
            for kind in ("scales", "biases"):
                plan.pop(f"{source.modules[0]}.{kind}", None)
    return plan, unpacked


def _made(
    base: Checkpoint, name: str, adapter: Adapter, dtype: str, transposed: bool
) -> np.ndarray:
    try:
        fused = fused_weight(base.tensor(name), adapter, numpy_dtype(dtype))
    except FloatingPointError as error:
        raise InputError(base.path, f"weight {show(name)} cannot be fused: {error}") from None
    return fused.T if transposed else fused


def copy_files(base: Path, target: Path, unpacked: list[str]) -> None:
    """Copy what goes with the weights byte for byte; only a packed module's end changes a config.

    Tensors are the last thing that is written, so that a bad file is told soon.
    """
    for name in (CONFIG, *COPIED):
        if exists_in(base, name):
            (target / name).write_bytes(_content(file_in(base, name)))
    if unpacked:
        text = json.dumps(config_without(file_in(base, CONFIG), unpacked), indent=2)
        (target / CONFIG).write_text(text + "\n", encoding="utf-8")


def _content(path: Path) -> bytes:
    empty = path.is_file() and path.stat().st_size == 0
    return b"" if empty else read_whole(path, limit=COPY_LIMIT)


def config_without(path: Path, unpacked: list[str]) -> dict[str, Any]:
    """Return a config that says of each of these modules that it is not packed."""
    config = read_json_object(path, subject="config", limits=CONFIG_LIMITS)
    for section in (config[key] for key in SECTIONS if isinstance(config.get(key), dict)):
        for module in unpacked:
            section |= dict.fromkeys([s for s in spellings(module) if s in section], False)
            section[module] = False
    return config


def described(
    base: Checkpoint, adapters: Adapters, target: str | Path, plan: Plan,
    changed: Collection[str], unpacked: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return what was done, for a person and for a program."""
    return {
        "target": str(target),
        "base": str(base.path),
        "adapter": str(adapters.path),
        "fused": list(changed),
        "unpacked": unpacked,
        "without_effect": [name for name in adapters.modules if name not in changed],
        "tensors": len(plan),
        "bytes": sum(one.nbytes for one in plan.values()),
        "warnings": [*base.warnings, *adapters.warnings],
    }
