"""Read a cache from a file that anyone may have written: nothing in it is taken on trust."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.prompt_cache.identity import identity, rank_of
from lockstep.parity.prompt_cache.layout import FORMAT, VERSION, expected, in_order
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.rope_scaling import context_length, steady_length
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.held_positions import HeldPositions
from lockstep.reference.stores.kinds import CacheOptions, check_kind
from lockstep.reference.stores.ring import FORGOTTEN, PADDING, Ring

SAID = ("model", "architecture", "dtype", "kind")
COUNTS = ("room", "size", "keep", "recent")
LARGEST = 1 << 40


@dataclass(frozen=True)
class Loaded:
    """A cache, and the ids of the tokens that it holds, (B, S).

    `steady` is up to how many tokens the model reads a text in parts as it does at once.
    """

    cache: Cache
    tokens: np.ndarray
    steady: int | None = None


def opened(path: str | Path) -> SafetensorsFile:
    """Open a file and look at its header alone. Raises: InputError if it is no cache of ours."""
    file = SafetensorsFile(path)
    said = file.metadata
    if said.get("format") != FORMAT:
        found = f"its format is {show(said.get('format'))}"
        raise InputError(path, f"is no saved cache: {found}, but should be '{FORMAT}'")
    if said.get("version") != VERSION:
        what = f"is a cache of version {show(said.get('version'))}, but this reads {VERSION}"
        raise InputError(path, what)
    missing = [key for key in SAID if key not in said]
    if missing:
        raise InputError(path, f"the header of the cache does not say its {missing[0]}")
    try:
        check_kind(said["kind"], CacheOptions(**options_of(file)))
    except InputError as error:
        raise InputError(path, error.what) from None
    return file


def options_of(file: SafetensorsFile) -> dict[str, int | None]:
    """Return what the kind was told, from the header."""
    return {key: counted(file, key) for key in COUNTS}


def counted(file: SafetensorsFile, key: str) -> int | None:
    """Return a count that the header may say."""
    text = file.metadata.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 14 and int(text) < LARGEST):
        raise InputError(file.path, f"{key}={show(text)}, but should be a count of tokens")
    return int(text)


def load_cache(path: str | Path, model: Any, *, room: int | None = None) -> Loaded:
    """Return a cache that `model`, or a copy of it elsewhere, has saved; on any of its backends.

    `room` is for a preallocated one; without it, it has the room that it had, up to the model's
    context.
    Raises: InputError in one line if the file is none, was made by another model, adapter or
    dtype, or holds anything that such a cache would not.
    """
    file = opened(path)
    check_model(file, model)
    options = options_of(file)
    tokens, positions = rows(file, model)
    if options["room"] is not None:
        own = min(options["room"], context_length(model.config))
        options["room"] = max(room or own, positions.shape[1])
    cache = model.make_cache(file.metadata["kind"], **options)
    if (positions == FORGOTTEN).any() and not cache.positions.forgets:
        raise InputError(path, f"positions hold {FORGOTTEN}, but should be -1 or more")
    cache.positions.take(positions)
    lengths = slots(file, cache)
    check_parts(file, cache, expected(model, cache.name, options), len(tokens), lengths)
    fill(file, cache, model)
    return Loaded(cache, tokens, steady_length(model.config))


def check_model(file: SafetensorsFile, model: Any) -> None:
    """Refuse a cache of another architecture, model, adapter or dtype."""
    said, checkpoint = file.metadata, model.checkpoint
    if said["architecture"] != checkpoint.architecture:
        what = f"is a cache of {show(said['architecture'])}, but {checkpoint.path.name} is "
        raise InputError(file.path, what + checkpoint.architecture)
    if said["dtype"] != model.dtype:
        what = f"holds {show(said['dtype'])}, but the model computes in {model.dtype} (--dtype)"
        raise InputError(file.path, what)
    if said.get("rank") != rank_of(model):
        found, wanted = (one or "a whole model" for one in (said.get("rank"), rank_of(model)))
        raise InputError(file.path, f"is a cache of {show(found, 40)}, but this is {wanted}")
    if said["model"] != identity(model):
        what = "was saved with other weights, another config or another adapter than this model's"
        raise InputError(file.path, what)


def rows(file: SafetensorsFile, model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the tokens and their positions, (B, S) each."""
    found = []
    for name, low, high in (
        ("tokens", 0, model.config.vocab_size),
        ("positions", FORGOTTEN, context_length(model.config)),
    ):
        entry = file.entries.get(name)
        if entry is None or entry.dtype != "I64" or len(entry.shape) != 2 or 0 in entry.shape:
            raise InputError(file.path, f"{name} should be I64 of shape (rows, tokens)")
        array = file.read(name).astype(np.int64)
        if array.min() < low or array.max() >= high:
            worst = array.min() if array.min() < low else array.max()
            raise InputError(file.path, f"{name} hold {worst}, but should be {low}..{high - 1}")
        found.append(array)
    tokens, positions = found
    if tokens.shape != positions.shape:
        what = f"tokens are {tokens.shape}, but positions {positions.shape}"
        raise InputError(file.path, what)
    if not in_order(positions):
        raise InputError(file.path, "positions do not count the tokens of each row from 0")
    return tokens, positions


def slots(file: SafetensorsFile, cache: Cache) -> dict[str, int]:
    """Fill the cache's rings from the file; return how many tokens layers of each kind hold."""
    positions, rings = cache.positions, {}
    count = positions.length
    for kind, ring in cache.positions.rings.items():
        name = f"rings.{kind}.slots"
        entry = file.entries.get(name)
        if entry is None or entry.dtype != "I64" or len(entry.shape) != 1:
            raise InputError(file.path, f"{name} should be I64 of one axis")
        found = file.read(name).astype(np.int64)
        within = not len(found) or (found.min() >= 0 and found.max() < count)
        within = within and np.isin(found, positions.numbers).all()
        if not within or len(np.unique(found)) != len(found):
            raise InputError(file.path, f"{name} should name tokens 0..{count - 1}, each once")
        rings[kind] = held(file, name, ring.holding(found), positions)
    cache.positions.rings = rings
    return {kind: len(ring.slots) for kind, ring in rings.items()}


def held(file: SafetensorsFile, name: str, ring: Ring, positions: HeldPositions) -> Ring:
    """Return the ring that `name` describes. Raises: InputError if the next token sees more."""
    array = positions.array
    assert array is not None  # a file has tokens
    following = array.max(axis=1, initial=PADDING)[:, None] + 1
    try:
        positions.check(following)
        ring.check(array, following, positions.numbers)
    except InputError:
        raise InputError(file.path, f"{name} lack tokens that the next one sees") from None
    return ring


def check_parts(
    file: SafetensorsFile,
    cache: Cache,
    wanted: dict[str, Any],
    batch: int,
    lengths: dict[str, int],
) -> None:
    """Refuse a file whose tensors are not those of the cache, by name, type or shape."""
    rings = {f"rings.{kind}.slots" for kind in lengths}
    for name in sorted(file.entries.keys() ^ ({"tokens", "positions"} | rings | wanted.keys())):
        what = "is not part of such a cache" if name in file.entries else "is missing"
        raise InputError(file.path, f"tensor {show(name)} {what}")
    count = file.entries["tokens"].shape[1]
    coded = counted(file, "coded") or 0
    if coded > count:
        raise InputError(file.path, f"coded={coded}, but there are {count} tokens")
    in_codes = {name.rpartition(".")[0] for name, (shape, _) in wanted.items() if not shape[2]}
    for name, (shape, tag) in wanted.items():
        entry = file.entries[name]
        held = lengths.get(cache.kinds[int(name.split(".")[1])], count)
        if name.rpartition(".")[0] in in_codes:  # the parts of codes, and the last one that is none
            held = coded if not shape[2] else count - coded
        whole = (batch, shape[1], held, *shape[3:])
        if (entry.dtype, entry.shape) != (tag, whole):
            found = f"is {entry.dtype} of shape {list(entry.shape)}"
            what = f"tensor {show(name)} {found}, but should be {tag} of {list(whole)}"
            raise InputError(file.path, what)


def fill(file: SafetensorsFile, cache: Cache, model: Any) -> None:
    """Put the file's parts into the stores, one layer at a time."""
    for side, stores in (("keys", cache.keys), ("values", cache.values)):
        for layer, store in enumerate(stores):
            start = f"layers.{layer}.{side}."
            names = sorted(name for name in file.entries if name.startswith(start))
            store.restore(model.ops, [model.put(file.read(name)) for name in names])
