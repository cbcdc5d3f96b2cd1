"""Which tokens end a text, and which one is a mask: generation_config.json, then config.json."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

GENERATION = "generation_config.json"
GENERATION_LIMITS = JsonLimits(size=1 << 20, entries=100_000, depth=16)
EOS_LIMIT = 1000
ID_LIMIT = 2**31  # beyond the vocabulary of any model
SHOWN = 3


@dataclass(frozen=True)
class GenerationConfig:
    """What a checkpoint says about generating. Sampling settings are the caller's to choose."""

    eos_token_ids: frozenset[int]
    mask_token_id: int | None = None  # of a model that was trained to fill in masks


def read_generation(
    folder: Path,
    config_path: Path,
    config_eos: Any,
    vocab_size: int,
    mask: Any = None,
    *,
    warnings: list[str],
) -> GenerationConfig:
    """Return the special tokens, or raise InputError if one cannot be a token.

    The end of text alone may be beyond the vocabulary, where it ends nothing: a small model keeps
    the default of its library so. A line of `warnings` then says it.
    """
    if mask is not None:
        ids = _token_ids("mask_token_id", [mask], config_path)
        if beyond := _beyond(ids, vocab_size):
            limit = f"ids go from 0 to {vocab_size - 1}"
            raise _bad(beyond[0], "mask_token_id", config_path, limit)
    path, key = config_path, "eos_token_id"
    ends = _token_ids(key, config_eos, path)
    if exists_in(folder, GENERATION):
        file = file_in(folder, GENERATION)
        raw = read_json_object(file, subject="generation config", limits=GENERATION_LIMITS)
        if raw.get(key) is not None:
            path, ends = file, _token_ids(key, raw[key], file)
    beyond = _beyond(ends, vocab_size)
    if beyond:
        ids = ", ".join(map(str, beyond[:SHOWN])) + ", ..." * (len(beyond) > SHOWN)
        warnings.append(
            f"{path.name} says {key} {ids}, but ids go from 0 to {vocab_size - 1}: it ends no text"
        )
    return GenerationConfig(ends - {*beyond}, mask)


def _beyond(ids: Collection[int], vocab_size: int) -> list[int]:
    return sorted(token for token in ids if token >= vocab_size)


def _token_ids(key: str, raw: Any, path: Path) -> frozenset[int]:
    if raw is None:
        return frozenset()
    ids = raw if isinstance(raw, list) else [raw]
    if len(ids) > EOS_LIMIT:
        raise InputError(path, f"{key} lists {len(ids)} tokens, the limit is {EOS_LIMIT}")
    for token in ids:
        if type(token) is not int or not 0 <= token < ID_LIMIT:
            raise _bad(token, key, path, f"should be a whole number from 0 to {ID_LIMIT - 1}")
    return frozenset(ids)


def _bad(token: Any, key: str, path: Path, wanted: str) -> InputError:
    return InputError(path, f"bad token id {show(token, 40)} in {key}", wanted)
