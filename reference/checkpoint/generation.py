"""Which tokens end a text, and which one is a mask: generation_config.json, then config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

EOS = "eos_token_id"
WITHOUT = f"; --ignore-config {EOS} reads no end of text"
GENERATION = "generation_config.json"
GENERATION_LIMITS = JsonLimits(size=1 << 20, entries=100_000, depth=16)
EOS_LIMIT = 1000


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
    endless: bool = False,
) -> GenerationConfig:
    """Return the special tokens, or raise InputError if one cannot be a token of the model.

    A small model often keeps the end of the large one that it was made from. Where a caller says
    that its texts are `endless`, no end is read.
    """
    own = _token_ids(EOS, config_eos, config_path, vocab_size)
    if mask is not None:
        _token_ids("mask_token_id", [mask], config_path, vocab_size)
    if endless or not exists_in(folder, GENERATION):
        return GenerationConfig(own, mask)
    path = file_in(folder, GENERATION)
    raw = read_json_object(path, subject="generation config", limits=GENERATION_LIMITS)
    if raw.get(EOS) is None:
        return GenerationConfig(own, mask)
    ends = _token_ids(EOS, raw[EOS], path, vocab_size)
    return GenerationConfig(ends, mask)


def _token_ids(key: str, raw: Any, path: Path, vocab_size: int) -> frozenset[int]:
    if raw is None:
        return frozenset()
    ids = raw if isinstance(raw, list) else [raw]
    if len(ids) > EOS_LIMIT:
        raise InputError(path, f"{key} lists {len(ids)} tokens, the limit is {EOS_LIMIT}")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            what = f"bad token id {show(token, 40)} in {key}{WITHOUT if key == EOS else ''}"
            raise InputError(path, what, f"ids go from 0 to {vocab_size - 1}")
    return frozenset(ids)
