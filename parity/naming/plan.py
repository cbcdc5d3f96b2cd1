"""Find the tap of every name in a dump: by a map file, by the known tables, by recovery."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import Alignment, align
from lockstep.parity.naming.by_value import recover_by_value
from lockstep.parity.naming.by_width import logits_by_width
from lockstep.parity.naming.first_layer import FirstLayer
from lockstep.parity.naming.llama_cpp import family_of
from lockstep.parity.naming.mapping import read_map
from lockstep.parity.naming.names import CACHED, is_tap, parted, sparse_layers, tap_named, unwrapped
from lockstep.parity.naming.padded_vocabulary import within_vocabulary
from lockstep.parity.naming.recovery import Recovery, recover_taps
from lockstep.parity.naming.stacked import taken_apart
from lockstep.parity.naming.wholesale import (
    LAYER,
    counted_from_1,
    from_0,
    over_heads,
    without_wrapper,
)
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint

Shape = tuple[int, ...]
BARE_STREAM = re.compile(r"h\.(0|[1-9][0-9]{0,5})")
# Behind a name, which then is that of no tap.
OVER, AGAIN = " over all heads", " as a whole"
OVER_HEADS = "one matrix for all heads in {count} tensors, as averages are: compared with nothing"


def aligned(
    dump: Dump,
    known: Mapping[str, Shape],
    map_file: str | Path | None = None,
    first: Callable[[], FirstLayer] | None = None,
) -> Alignment:
    """Align a dump with the taps of a model, `known` with their shapes.

    A map file goes before everything; then the names that frameworks use; then what is a regular
    renaming; then, with the reference's `first` layer, values. Its `plan` says what was done.
    Raises: InputError if a map is bad, or two names mean one tap.
    """
    mapped, told = by_map(dump, map_file)
    mapped, averages = without_averages(mapped, dump.shapes, known)
    mean = partial(tap_named, family=family_of(known))
    dump, apart = taken_apart(dump, known, lambda name: mapped.get(name) or mean(name))
    dump, padded = within_vocabulary(dump, known, lambda name: mapped.get(name) or mean(name))
    rest = {n: shape for n, shape in dump.shapes.items() if n not in mapped and not parted(n)[0]}
    found = Recovery()
    meant = as_a_whole(found, rest, known, mapped.values())
    over = over_heads(meant, rest, known)
    meant |= (beside := {name: name + OVER for name in over})
    found.names |= beside
    if averages or over:
        found.plan.append(OVER_HEADS.format(count=averages + len(over)))
    recover_rest(found, meant, rest, known, mapped, dump.read, first)
    recover_logits(found, meant, rest, known, mapped)
    recovered = dict(in_every_step(dump.shapes, found.names))
    told = [*told, *apart, *padded, *found.plan]
    return align(dump, mapped=recovered | mapped, told=told, known=known)


def by_map(dump: Dump, map_file: str | Path | None) -> tuple[dict[str, str], list[str]]:
    """Return the taps of the names that a map knows, and what it says of itself."""
    if map_file is None:
        return {}, []
    names = read_map(map_file)
    mapped = names.mapped(dump.shapes)
    return mapped, names.plan(mapped)


def without_averages(
    mapped: Mapping[str, str], shapes: Mapping[str, Shape], known: Mapping[str, Shape]
) -> tuple[dict[str, str], int]:
    """Return what a map says, but for averages that it calls probabilities, and their number."""
    prompts = {name: tap for name, tap in mapped.items() if not parted(name)[0]}
    over = over_heads(prompts, shapes, known)
    some = {n: n + OVER if parted(n)[1] in over else tap for n, tap in mapped.items()}
    return some, len(over)


def as_a_whole(
    found: Recovery, names: Iterable[str], known: Mapping[str, Shape], taken: Iterable[str]
) -> dict[str, str]:
    """Return what each name means, without what wraps all of them, with layers counted from 0.

    To `found` goes what the tables alone do not say. A module is not its last part where that is
    there by its own name, or `taken`.
    """
    mean = partial(tap_named, sparse=sparse_layers(known), family=family_of(known))
    bare = without_wrapper(names)
    spelled = {name: unwrapped(bare.get(name, name)) for name in names}
    meant = {name: mean(path) for name, path in spelled.items()}
    from_1 = shifted(spelled, meant, mean) if counted_from_1(meant.values(), known) else {}
    if from_1:
        spelled, meant = spelled | from_1, meant | {name: mean(from_1[name]) for name in from_1}
        found.plan.append(f"layers of {len(from_1)} names counted from 1")
    if bare or from_1:
        wholes = {name for name, tap in meant.items() if spelled[name] != tap}
        parts = {*taken, *(tap for name, tap in meant.items() if name not in wholes)}
        meant |= {name: name + AGAIN for name in wholes if meant[name] in parts}
        found.names |= meant
    return meant


def shifted(
    spelled: Mapping[str, str], meant: Mapping[str, str], mean: Callable[[str], str]
) -> dict[str, str]:
    """Return the paths of taps whose layers are counted from 1, with layers counted from 0.

    The path is shifted, not its meaning: whether an `mlp` is of experts, its own layer says. Of a
    name that is no path, as llama.cpp's are, the meaning is.
    """
    paths = {name: path if LAYER.fullmatch(path) else meant[name] for name, path in spelled.items()}
    paths = {name: from_0(path) for name, path in paths.items() if LAYER.fullmatch(path)}
    return {name: path for name, path in paths.items() if is_tap(meant[name]) or is_tap(mean(path))}


def recover_rest(
    found: Recovery,
    meant: Mapping[str, str],
    shapes: Mapping[str, Shape],
    known: Mapping[str, Shape],
    mapped: Mapping[str, str],
    read: Callable[[str], np.ndarray],
    first: Callable[[], FirstLayer] | None,
) -> None:
    """Add to `found` what words and values say of names whose meaning is no tap of the model."""
    free = {
        name: shape for name, shape in shapes.items()
        if meant[name] not in known and not meant[name].endswith((*CACHED, OVER, AGAIN))
    }  # fmt: skip
    bare = {} if first is None else bare_streams(meant)
    own = {tap: name for name, tap in meant.items() if tap in known and name not in bare}
    said = recover_taps(free, known, mapped.values(), own={*own, *bare.values()})
    found.names |= said.names
    found.plan += said.plan
    left = {name: shapes[name] for name in (*said.unmatched, *bare)}
    if first is None or not left:
        return
    given = own | {tap: name for name, tap in (said.names | {**mapped}).items()}
    valued = recover_by_value(left, known, given, read, first())
    found.names |= valued.names
    found.plan += valued.plan


def recover_logits(
    found: Recovery,
    meant: Mapping[str, str],
    shapes: Mapping[str, Shape],
    known: Mapping[str, Shape],
    mapped: Mapping[str, str],
) -> None:
    """Add to `found` the logits, if they are there under a name that means nothing."""
    means = {**meant, **found.names}
    left = {name: shape for name, shape in shapes.items() if means[name] not in known}
    names, told = logits_by_width(left, known, [*means.values(), *mapped.values()])
    found.names |= names
    found.plan += told


def bare_streams(meant: Mapping[str, str]) -> dict[str, str]:
    """Return streams `h.3` that are GPT-2's by that alone: no name says that `h` are its modules.

    Ports call their list of streams so, whichever these are: values go before that name.
    """
    if any(name.startswith("h.") and not BARE_STREAM.fullmatch(name) for name in meant):
        return {}
    return {name: tap for name, tap in meant.items() if BARE_STREAM.fullmatch(name) and tap != name}


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
