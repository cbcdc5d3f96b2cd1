"""A GGUF file as the named tensors of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.architectures import Architecture
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.generation import GenerationConfig
from lockstep.reference.checkpoint.gguf.config import ARCHITECTURE, read_config
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.checkpoint.gguf.names import FREQUENCIES, stored_name
from lockstep.reference.checkpoint.gguf.rows import QUERIES_OR_KEYS, halves_first, heads_around
from lockstep.reference.checkpoint.layout import Stored
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.sources import Source

# The rows of these are in llama.cpp's own order: see rows.py.
REORDERED = ("llama",)
# Each names one token that ends a text: of the document, of a turn, of a message.
ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
TOKENS, PARTS = "tokenizer.ggml.tokens", "split.count"

# Path, architecture, config, generation, tensors, layout, warnings.
Opened = tuple[
    Path, Architecture, Any, GenerationConfig, "GgufTensors", dict[str, Stored], list[str]
]


class GgufTensors:
    """The tensors of one file under Hugging Face names, their rows in Hugging Face's order."""

    def __init__(self, file: GgufFile, head_dim: int) -> None:
        self._file, self._head_dim = file, head_dim
        self._reorders = file.metadata[ARCHITECTURE] in REORDERED

    def entry(self, name: str) -> Entry:
        return self._file.entries[stored_name(name)]

    def read(self, name: str) -> Any:
        tensor = self._file.read(stored_name(name))
        return halves_first(tensor, self._head_dim) if self._moved(name) else tensor

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        if not self._moved(name) or start >= stop:
            return self._file.read_rows(stored_name(name), start, stop)
        first, last = heads_around(start, stop, self._head_dim)
        heads = self._file.read_rows(stored_name(name), first, last)
        return halves_first(heads, self._head_dim)[start - first : stop - first]

    def _moved(self, name: str) -> bool:
        return self._reorders and QUERIES_OR_KEYS.fullmatch(name) is not None


def gguf_parts(path: Path, *, ignore: Collection[str]) -> Opened:
    """Open one GGUF file and return what a `Checkpoint` is made of, in its order.

    No data is read but a few arrays of the metadata and the divisors of rotary frequencies.
    Raises InputError for anything missing, unknown, inconsistent or unsound.
    """
    file = GgufFile(path)
    warnings = list(file.warnings)
    _check_whole(file)
    architecture, config = read_config(file, ignore=ignore, warnings=warnings)
    layout = _layout(file, architecture, config)
    _check_vocabulary(file, config.vocab_size)
    generation = GenerationConfig(_ends(file, config.vocab_size))
    tensors = GgufTensors(file, config.head_dim)
    return path, architecture, config, generation, tensors, layout, warnings


def _check_whole(file: GgufFile) -> None:
    count = file.metadata.get(PARTS, 0)
    if count not in (0, 1):
        what = f"is one of {show(count, 30)} parts: join them with llama-gguf-split --merge"
        raise InputError(file.path, what, PARTS)


def _layout(file: GgufFile, architecture: Architecture, config: Any) -> dict[str, Stored]:
    """Return where each tensor lies. Raises InputError if one is missing, left over or other."""
    shapes = architecture.tensors(config)
    names = {name: stored_name(name) for name in shapes}
    if missing := [name for name in names.values() if name not in file.entries]:
        _disagree(file, f"missing {show_names(missing)}", config)
    for name, shape in shapes.items():
        entry = file.entries[names[name]]
        if entry.shape != shape:
            what = f"{show(names[name])} has shape {show(entry.shape, 40)}, metadata give "
            _disagree(file, what + show(shape, 40), config)
        if len(shape) == 1 and entry.dtype not in ("F32", "F16", "BF16"):
            raise InputError(file.path, f"{show(names[name])} must be plain, not {entry.dtype}")
    rotary = architecture.position_limit(config) is None
    used = {*names.values(), *((FREQUENCIES,) if rotary else ())}
    if unknown := [name for name in file.entries if name not in used]:
        _disagree(file, f"unknown tensors {show_names(unknown)}", config)
    return {name: Stored(shape, None, Source((name,))) for name, shape in shapes.items()}


def _disagree(file: GgufFile, what: str, config: Any) -> None:
    where = f"block_count={config.num_hidden_layers}"
    raise InputError(file.path, f"metadata disagree with tensors: {what}", where)


def _check_vocabulary(file: GgufFile, size: int) -> None:
    tokens = file.metadata.get(TOKENS)
    count = getattr(tokens, "count", None)
    if tokens is not None and count != size:
        what = f"{TOKENS} has {show(count)} tokens, but the embedding has {size} rows"
        raise InputError(file.path, f"metadata disagree with tensors: {what}")


def _ends(file: GgufFile, vocab_size: int) -> frozenset[int]:
    found = {key: file.metadata[key] for key in ENDS if key in file.metadata}
    for key, token in found.items():
        if type(token) is not int or not 0 <= token < vocab_size:
            what = f"bad token id {show(token, 40)} in {key}"
            raise InputError(file.path, what, f"ids go from 0 to {vocab_size - 1}")
    return frozenset(int(token) for token in found.values() if isinstance(token, int))
