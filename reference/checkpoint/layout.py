"""Comparing what an architecture needs with what the files hold, before any data is read."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.reference.checkpoint.architectures import Architecture, Config
from lockstep.reference.checkpoint.dtypes import FLOATS
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.packed import Packing, infer_packing, is_packed
from lockstep.reference.checkpoint.quantization import QuantizationConfig, spellings
from lockstep.reference.checkpoint.sharded import Shards


@dataclass(frozen=True)
class Stored:
    """One tensor of the architecture: its logical shape, and its packing or None."""

    shape: tuple[int, ...]
    packing: Packing | None


def resolve_layout(
    shards: Shards,
    architecture: Architecture,
    config: Config,
    declared: QuantizationConfig,
    warnings: list[str],
) -> dict[str, Stored]:
    """Return how each tensor that the architecture needs is stored.

    Raises InputError if one is missing or has another shape or type than config.json asks for, or
    if a tensor is left that the architecture does not know.
    """
    shapes = architecture.tensors(config)
    _check_missing(shards, config, list(shapes))
    layout, used = {}, set()
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        packed = name.endswith(".weight") and len(shape) == 2 and is_packed(shards, module)
        packing = infer_packing(shards, module, shape) if packed else None
        if packing is None:
            _check_plain(shards, name, shape)
        layout[name] = Stored(shape, packing)
        used |= {name, f"{module}.scales", f"{module}.biases"} if packed else {name}
    rest = [name for name in shards.names if name not in used]
    reasons = {name: architecture.tolerated(name, config) for name in rest}
    _check_unknown(shards, config, reasons, warnings)
    _compare_declared(layout, declared, warnings)
    return layout


def _check_missing(shards: Shards, config: Config, names: list[str]) -> None:
    missing = [name for name in names if name not in shards]
    if not missing:
        return
    hint = f"num_hidden_layers={config.num_hidden_layers}"
    if missing == ["lm_head.weight"]:
        hint = "tie_word_embeddings=false in config.json"
    what = f"config disagrees with weights: missing {show_names(missing)}"
    raise InputError(shards.folder, what, hint)


def _check_plain(shards: Shards, name: str, shape: tuple[int, ...]) -> None:
    entry = shards.entry(name)
    if entry.shape != shape:
        what = f"config disagrees with weights: {show(name)} has shape {show(entry.shape, 40)}, "
        raise InputError(shards.path_of(name), what + f"config.json gives {show(shape, 40)}")
    if entry.dtype not in FLOATS:
        what = f"weight {show(name)} has dtype {entry.dtype}, {', '.join(FLOATS)} are read"
        raise InputError(shards.path_of(name), what)


def _check_unknown(
    shards: Shards, config: Config, reasons: dict[str, str | None], warnings: list[str]
) -> None:
    """Refuse tensors that nothing needs and no reason excuses; mention the excused ones."""
    unknown = [name for name, reason in reasons.items() if reason is None]
    if unknown:
        what = f"config disagrees with weights: unknown tensors {show_names(unknown)}"
        hint = f"num_hidden_layers={config.num_hidden_layers}"
        raise InputError(shards.path_of(unknown[0]), what, hint)
    for reason in sorted({reason for reason in reasons.values() if reason is not None}):
        names = sorted(name for name, why in reasons.items() if why == reason)
        warnings.append(f"tensors not used, because {reason}: {show_names(names)}")


def _compare_declared(
    layout: dict[str, Stored], declared: QuantizationConfig, warnings: list[str]
) -> None:
    """Warn where config.json declares another quantisation than the shapes prove."""
    matrices = {
        name.removesuffix(".weight"): stored
        for name, stored in layout.items()
        if name.endswith(".weight") and len(stored.shape) == 2
    }
    packed = {m: s.packing for m, s in matrices.items() if s.packing is not None}
    if wrong := [m for m, packing in packed.items() if not packing.agrees(declared.declared(m))]:
        says = declared.declared(wrong[0]) or "no quantisation"
        warnings.append(
            f"quantisation of {len(wrong)} modules inferred from their shapes: config.json "
            f"declares {says} for {show(wrong[0])}, the shapes give {packed[wrong[0]]}"
        )
    plain = [m for m in matrices if m not in packed and declared.override(m) is not None]
    if plain:
        warnings.append(f"declared quantised, but stored plain: {show_names(plain)}")
    known = {name for module in matrices for name in spellings(module)}
    if stray := [name for name in declared.overrides if name not in known]:
        warnings.append(f"quantisation declared for modules that are not here: {show_names(stray)}")
