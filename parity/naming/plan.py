"""Find the tap of every name in a dump: by a map file, by the known tables, by recovery."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import Alignment, align
from lockstep.parity.naming.llama_cpp import family_of
from lockstep.parity.naming.mapping import read_map
from lockstep.parity.naming.names import CACHED, parted, sparse_layers, tap_named
from lockstep.parity.naming.recovery import recover_taps
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint

Shape = tuple[int, ...]


def aligned(
    dump: Dump, known: Mapping[str, Shape], map_file: str | Path | None = None
) -> Alignment:
    """Align a dump with the taps of a model, `known` with their shapes.

    A map file goes before everything; then the names that frameworks use; then what is a regular
    renaming. Its `plan` says what was done.
    Raises: InputError if a map is bad, or two names mean one tap.
    """
    mapped: dict[str, str] = {}
    told: list[str] = []
    if map_file is not None:
        names = read_map(map_file)
        mapped = names.mapped(dump.shapes)
        told = names.plan(mapped)
    rest = {n: shape for n, shape in dump.shapes.items() if n not in mapped and not parted(n)[0]}
    sparse, family = sparse_layers(known), family_of(known)
    meant = {name: tap_named(name, sparse=sparse, family=family) for name in rest}
    free = {
        name: shape for name, shape in rest.items()
        if meant[name] not in known and not meant[name].endswith(CACHED)
    }  # fmt: skip
    own = {tap for tap in meant.values() if tap in known}
    found = recover_taps(free, known, mapped.values(), own=own)
    recovered = dict(in_every_step(dump.shapes, found.names))
    return align(dump, mapped=recovered | mapped, told=[*told, *found.plan], known=known)


def in_every_step(names: Iterable[str], found: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield name and tap of what was recovered, and of the same names in later steps."""
    for name in names:
        step, path = parted(name)
        if path in found:
            yield name, step + found[path]


def known_taps(checkpoint: Checkpoint, *, length: int, batch: int = 1) -> dict[str, Shape]:
    """Return the taps of a model with their shapes for a prompt of `length` tokens."""
    sizes = {"B": batch, "L": length}
    return {
        tap["name"]: tuple(sizes[one] if isinstance(one, str) else one for one in tap["shape"])
        for tap in taps_of(checkpoint)
    }
