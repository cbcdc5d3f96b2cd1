"""Comparing what an architecture needs with what the files hold, before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockstep.reference.checkpoint.architectures import Architecture, Config
from lockstep.reference.checkpoint.dtypes import FLOATS
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.packed import Packing, infer_packing, is_packed
from lockstep.reference.checkpoint.quantization import QuantizationConfig, spellings
from lockstep.reference.checkpoint.sharded import Shards
from lockstep.reference.checkpoint.sources import Source
from lockstep.reference.checkpoint.tied_head import HEAD, warn_of_other_head


@dataclass(frozen=True)
class Stored:
    """One tensor of the architecture: its logical shape, its packing or None, and where it lies."""

    shape: tuple[int, ...]
    packing: Packing | None
    source: Source


def resolve_layout(
    shards: Shards,
    architecture: Architecture,
    config: Config,
    declared: QuantizationConfig,
    warnings: list[str],
) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Return how each tensor that the architecture needs is stored; and a head that is stored
    though it is tied, if it is another one than the embedding.

    Raises InputError if one is missing or has another shape or type than config.json asks for, or
    if a tensor is left that the architecture does not know.
    """
    shapes = architecture.tensors(config)
    found = architecture.sources(config, {name: shards.entry(name).shape for name in shards.names})
    sources = {name: found.get(name, Source((name,))) for name in shapes}
    _check_missing(shards, config, [name for source in sources.values() for name in source.names])
    layout = {name: _stored(shards, shapes[name], source) for name, source in sources.items()}
    used = {part for stored in layout.values() for part in _parts(stored)}
    rest = [name for name in shards.names if name not in used]
    reasons = {name: architecture.tolerated(name, config) for name in rest}
    _check_unknown(shards, config, reasons, warnings)
    table = next(iter(layout.values()))
    head = warn_of_other_head(shards, table.source.names[0], rest, warnings)
    _compare_declared(layout, declared, warnings)
    return layout, {} if head is None else {HEAD: replace(table, source=Source((head,)))}


def _stored(shards: Shards, shape: tuple[int, ...], source: Source) -> Stored:
    """Return how one tensor is stored. Raises InputError if its parts are not stored alike."""
    inner = source.stored_shape(shape)
    may_be_packed = source.names[0].endswith(".weight") and len(shape) > 1
    if not (may_be_packed and is_packed(shards, source.modules[0])):
        for name in source.names:
            _check_plain(shards, name, inner)
        return Stored(shape, None, source)
    packings = {infer_packing(shards, module, inner) for module in source.modules}
    if len(packings) > 1:
        what = f"packed differently: {' and '.join(sorted(map(str, packings)))}"
        raise InputError(shards.folder, what, f"{show(source.names[0])} and its like")
    return Stored(shape, packings.pop(), source)


def _parts(stored: Stored) -> list[str]:
    """Return the names of all tensors of the files that one is made of."""
    if stored.packing is None:
        return list(stored.source.names)
    kinds = stored.packing.parts
    return [f"{module}.{kind}" for module in stored.source.modules for kind in kinds]


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
        stored.source.modules[0]: stored
        for name, stored in layout.items()
        if name.endswith(".weight") and len(stored.shape) > 1
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
