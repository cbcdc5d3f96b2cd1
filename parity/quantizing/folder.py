"""From a folder of dense weights to one of packed weights that mlx-lm loads, and so do we."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.parity.model_files import copy_model_files
from lockstep.parity.new_folder import check_new_folder, new_folder
from lockstep.parity.progress import Progress
from lockstep.parity.quantizing.mlx_names import mlx_name
from lockstep.parity.quantizing.packed_module import PackedModule
from lockstep.parity.quantizing.recipe import Recipe
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.adapters import HEAD, tied_table
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import file_in
from lockstep.reference.checkpoint.packed import Packing
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.sharded import SINGLE
from lockstep.reference.checkpoint.strict_json import read_json_object

FLOATS = ("F32", "F16", "BF16")
NOT_IN_MLX_LM = ("wedlm",)


def quantize(
    model: str | Path, target: str | Path, recipe: Recipe, *, ignore_config: Collection[str] = ()
) -> dict[str, Any]:
    """Write the folder `target`: the model with each matrix packed as `recipe` says.

    Codes, scales and offsets are those of `mlx.core.quantize` to the bit; names, and what is packed
    at all, those of mlx-lm's converter. Scales take the dtype of the weight. A matrix whose width
    is no multiple of its group stays as it is, and so does all that is no matrix.
    Raises: InputError for what cannot be read or packed. The folder appears whole, or not at all.
    """
    if is_gguf(resolve_model(model)):
        raise InputError(resolve_model(model), "is a GGUF file: folders of safetensors are packed")
    source = open_checkpoint(model, ignore_config=ignore_config)
    check_dense(source)
    packings = chosen(source, recipe)
    whole = check_new_folder(Path(target), [source.path])
    plan = planned(source, packings)
    with new_folder(whole) as folder, Progress(len(plan)) as progress:
        copy_model_files(source.path, folder)
        write_config(source, folder, recipe, packings)
        write_safetensors(folder / SINGLE, plan, metadata={"format": "mlx"}, done=progress)
    return described(source, target, recipe, packings, plan)


def check_dense(source: Checkpoint) -> None:
    """Raise InputError for a model that is packed already: its numbers would be rounded twice."""
    packed = [name for name in source.names if source.stored(name).packed]
    if packed:
        what = f"{len(packed)} weights are packed already; give the model that they were made of"
        raise InputError(source.path, what, show(packed[0]))
    for name in source.names:
        if source.stored(name).dtype not in FLOATS:
            what = f"is {source.stored(name).dtype}; weights are packed from {', '.join(FLOATS)}"
            raise InputError(source.path, f"tensor {show(name)} {what}")


def chosen(source: Checkpoint, recipe: Recipe) -> dict[str, Packing]:
    """Return how each module is packed that is. The table of a tied head goes by `lm_head` too."""
    modules = matrices(source)
    table = tied_table(source)
    recipe.check(modules if table is None else [*modules, HEAD])
    found, layers = {}, source.config.num_hidden_layers
    for module, shape in modules.items():
        packing = recipe.packing((module, HEAD) if module == table else (module,), layers)
        if packing is not None and shape[-1] % packing.group_size == 0:
            found[module] = packing
    if not found:
        raise InputError(source.path, "no weight is packed by this recipe")
    return found


def matrices(source: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Return module -> shape of what may be packed: matrices, tables and stacks of experts."""
    shapes = {name: source.stored(name).shape for name in source.names}
    return {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) > 1
    }


def planned(source: Checkpoint, packings: dict[str, Packing]) -> dict[str, Planned]:
    """Return name -> tensor of all that the new file holds."""
    plan: dict[str, Planned] = {}
    for name in source.names:
        module = name.removesuffix(".weight")
        if module in packings and name != module:
            parts = PackedModule(source, name, packings[module]).planned()
            path = mlx_name(source, module)
            plan |= {f"{path}.{kind}": one for kind, one in parts.items()}
            continue
        stored = source.stored(name)
        make = partial(source.tensor, name)
        plan[mlx_name(source, name)] = Planned(stored.dtype, stored.shape, make)  # pyright: ignore
    return plan


def write_config(
    source: Checkpoint, folder: Path, recipe: Recipe, packings: dict[str, Packing]
) -> None:
    """Write the config with a section of packings, under both of the names that are read."""
    path = file_in(source.path, CONFIG)
    config = read_json_object(path, subject="config", limits=CONFIG_LIMITS)
    section: dict[str, Any] = declared(recipe.default)
    for module, packing in packings.items():
        if packing != recipe.default:
            section[mlx_name(source, module)] = declared(packing)
    config.pop("vision_config", None)  # as mlx-lm has it: the text model alone is written
    config |= {"quantization": section, "quantization_config": section}
    text = json.dumps(config, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def declared(packing: Packing) -> dict[str, Any]:
    return {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}


def described(
    source: Checkpoint, target: str | Path, recipe: Recipe, packings: dict[str, Packing],
    plan: dict[str, Planned],
) -> dict[str, Any]:  # fmt: skip
    """Return what was done, for a person and for a program."""
    nbytes = sum(one.nbytes for one in plan.values())
    before = sum(source.stored(name).nbytes for name in source.names)
    shapes = matrices(source)
    by_packing: dict[str, int] = {}
    for packing in packings.values():
        by_packing[str(packing)] = by_packing.get(str(packing), 0) + 1
    return {
        "target": str(target),
        "model": str(source.path),
        "default": declared(recipe.default),
        "packed": by_packing,
        "kept": [module for module in shapes if module not in packings],
        "tensors": len(plan),
        "bytes_before": before,
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / parameters(source),
        "warnings": [*source.warnings, *unknown_to_mlx_lm(source)],
    }


def unknown_to_mlx_lm(source: Checkpoint) -> list[str]:
    """Say so if mlx-lm has no such model: then Lockstep alone loads the folder."""
    lacks = source.architecture in NOT_IN_MLX_LM
    return [f"mlx-lm has no {source.architecture}, so it cannot load the folder"] if lacks else []


def parameters(source: Checkpoint) -> int:
    """Return how many numbers the model has."""
    from math import prod

    return sum(prod(source.stored(name).shape) for name in source.names)
