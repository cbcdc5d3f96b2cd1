"""A cache of a kind that is named, of the stores and codecs that a package has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.reference.stores.cache import Cache, Pair
from lockstep.reference.stores.coded import Codec, Coded, Hold
from lockstep.reference.stores.concatenating import Concatenating
from lockstep.reference.stores.cooling import Cooling
from lockstep.reference.stores.growing import Growing
from lockstep.reference.stores.kinds import (
    AFFINE_BITS,
    QUANTISED,
    RECENT,
    TURBO_BITS,
    CacheOptions,
    check_kind,
    heads_of,
    kept_whole,
    layer_kinds,
    rings_of,
)
from lockstep.reference.stores.preallocated import Preallocated
from lockstep.reference.stores.rotating import Rotating
from lockstep.reference.stores.store import Store, Zeros


@dataclass(frozen=True)
class Makers:
    """What a package has: the store of what is kept as it is, buffers on the backend, and codecs.

    `codec` is told the kind of the cache, and whether it is for keys; `hold` says what attention is
    given of codes.
    """

    plain: Callable[[], Store]
    zeros: Zeros
    codec: Callable[[str, bool], Codec]
    hold: Hold


def built(kind: str, config: Any, options: CacheOptions, makers: Makers) -> Cache:
    """Return an empty cache for a model.

    Raises: InputError if there is no such kind, or an option is not for it.
    """
    check_kind(kind, options)
    kinds, rings = layer_kinds(config), rings_of(kind, config, options)
    whole = kept_whole(kind, config)

    def pair(layer: int) -> Pair:
        ring = rings.get(kinds[layer])
        if ring is not None:
            size = ring.size + ring.keep
            return Rotating(size, makers.zeros), Rotating(size, makers.zeros)
        if layer in whole:
            return makers.plain(), makers.plain()
        return store(kind, options, makers, keys=True), store(kind, options, makers, keys=False)

    stores, doubts = [pair(layer) for layer in range(len(kinds))], warnings_of(kind, config)
    return Cache(stores, name=kind, kinds=kinds, rings=rings, options=options, warnings=doubts)


def store(kind: str, options: CacheOptions, makers: Makers, *, keys: bool) -> Store:
    """Return an empty store for the keys or the values of a layer that drops nothing."""
    if kind in TURBO_BITS:
        recent = RECENT if options.recent is None else options.recent
        return Cooling(makers.codec(kind, keys), makers.plain, makers.hold, recent)
    if kind in QUANTISED:
        return Coded(makers.codec(kind, keys), makers.plain, makers.hold)
    if options.room is not None:
        return Preallocated(options.room, makers.zeros)
    if kind == "concatenating":
        return Concatenating()
    return Growing(makers.zeros) if kind == "growing" else makers.plain()


def warnings_of(kind: str, config: Any) -> list[str]:
    """Return the warning that some layers are not quantised, in a list that may be empty."""
    whole = kept_whole(kind, config)
    if not whole:
        return []
    widths = sorted({heads_of(config, layer)[1] for layer in whole})
    count = f"{len(whole)} of {config.num_hidden_layers} layers"
    wide = ", ".join(map(str, widths))
    wanted = "a multiple of 32" if kind in AFFINE_BITS else "32, 64, 128 or 256"
    return [f"{count} are kept as they are: heads of {wide} are not of {wanted}"]
