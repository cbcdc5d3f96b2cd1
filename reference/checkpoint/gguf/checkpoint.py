"""A GGUF file as the named tensors of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.architectures import Architecture
from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.generation import GenerationConfig
from lockstep.reference.checkpoint.gguf.config import ARCHITECTURE, read_config
from lockstep.reference.checkpoint.gguf.gemma4 import idle
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.checkpoint.gguf.names import FREQUENCIES, stored_name
from lockstep.reference.checkpoint.gguf.parts import Gguf, open_gguf
from lockstep.reference.checkpoint.gguf.rows import QUERIES_OR_KEYS, halves_first, heads_around
from lockstep.reference.checkpoint.layout import Stored
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.sources import Source
from lockstep.reference.checkpoint.spans import Spans

# The rows of these are in llama.cpp's own order: see rows.py.
REORDERED = ("llama",)
# Each names one token that ends a text: of the document, of a turn, of a message.
ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
MASK = "tokenizer.ggml.mask_token_id"
# Of a text, of a turn, of a turn that waits for a tool. The file names one by its id at most.
GEMMA4_ENDS = ("<eos>", "<turn|>", "<|tool_response>")
TOKENS = "tokenizer.ggml.tokens"

# Path, architecture, config, generation, tensors, layout, warnings.
Opened = tuple[
    Path, Architecture, Any, GenerationConfig, "GgufTensors", dict[str, Stored], list[str]
]


class GgufTensors:
    """The tensors of a file, or of several, with the names and the rows of Hugging Face."""

    def __init__(self, file: Gguf, head_dim: int) -> None:
        self._file, self._head_dim = file, head_dim
        self._kind = str(file.metadata[ARCHITECTURE])

    def entry(self, name: str) -> Entry:
        return self._file.entries[stored_name(name, self._kind)]

    def read(self, name: str, room: np.ndarray | None = None) -> Any:
        if not self._moved(name):
            return self._file.read(stored_name(name, self._kind), room)
        return halves_first(self._file.read(stored_name(name, self._kind)), self._head_dim)

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        """Return some rows; queries and keys are read by whole heads, to be put in order again."""
        if not self._moved(name) or start >= stop:
            return self._file.read_rows(stored_name(name, self._kind), start, stop)
        first, last = heads_around(start, stop, self._head_dim)
        heads = self._file.read_rows(stored_name(name, self._kind), first, last)
        return halves_first(heads, self._head_dim)[start - first : stop - first]

    def read_part(self, name: str, rows: Spans | None, columns: Spans | None, width: int) -> Any:
        """Return some rows and columns; of queries and keys the rows are those of whole heads."""
        found = self._file.read_part(stored_name(name, self._kind), rows, columns, width)
        return halves_first(found, self._head_dim) if self._moved(name) else found

    def _moved(self, name: str) -> bool:
        return self._kind in REORDERED and QUERIES_OR_KEYS.fullmatch(name) is not None


def gguf_parts(path: Path, *, ignore: Collection[str]) -> Opened:
    """Open a GGUF file, or the first of several; return what makes a `Checkpoint`, in its order.

    No data is read but a few arrays of the metadata and the divisors of rotary frequencies.
    Raises InputError for anything missing, unknown, inconsistent or unsound.
    """
    file = open_gguf(path)
    warnings = list(file.warnings)
    architecture, config = read_config(file, ignore=ignore, warnings=warnings)
    layout = _layout(file, architecture, config, warnings)
    _check_vocabulary(file, config.vocab_size)
    mask = _named(file, (MASK,), config.vocab_size)
    generation = GenerationConfig(_ends(file, config.vocab_size), *mask)
    tensors = GgufTensors(file, config.head_dim)
    return path, architecture, config, generation, tensors, layout, warnings


def _layout(
    file: Gguf, architecture: Architecture, config: Any, warnings: list[str]
) -> dict[str, Stored]:
    """Return where each tensor lies. Raises InputError if one is missing, left over or other."""
    kind, shapes = str(file.metadata[ARCHITECTURE]), architecture.tensors(config)
    sources = {name: _source(name, file, kind) for name in shapes}
    names = {name: stored_name(source.names[0], kind) for name, source in sources.items()}
    if missing := [name for name in names.values() if name not in file.entries]:
        _disagree(file, f"missing {show_names(missing)}", config)
    for name, source in sources.items():
        entry, shape = file.entries[names[name]], source.stored_shape(shapes[name])
        if entry.shape != shape:
            what = f"{show(names[name])} has shape {show(entry.shape, 40)}, metadata give "
            _disagree(file, what + show(shape, 40), config)
        if len(shape) == 1 and entry.dtype not in ("F32", "F16", "BF16"):
            raise InputError(file.path, f"{show(names[name])} must be plain, not {entry.dtype}")
    rotary = architecture.position_limit(config) is None
    used = {*names.values(), *((FREQUENCIES,) if rotary else ())}
    rest = [name for name in file.entries if name not in used]
    _check_rest(file, [name for name in rest if not idle(name, config)], config)
    if unused := [name for name in rest if idle(name, config)]:
        why = "these layers take their keys and values from an earlier one"
        warnings.append(f"tensors not used, because {why}: {show_names(unused)}")
    return {name: Stored(shape, None, sources[name]) for name, shape in shapes.items()}


def _source(name: str, file: Gguf, kind: str) -> Source:
    """Return what a tensor is made of: itself, or half of two that are stored as one."""
    for half, part in enumerate(("gate_proj", "up_proj")):
        both = name.replace(f"experts.{part}", "experts.gate_up_proj")
        if kind == "gemma4" and both != name and stored_name(both, kind) in file.entries:
            return Source((both,), half=half)
    return Source((name,))


def _check_rest(file: Gguf, unknown: list[str], config: Any) -> None:
    if unknown:
        _disagree(file, f"unknown tensors {show_names(unknown)}", config)


def _disagree(file: Gguf, what: str, config: Any) -> None:
    where = f"block_count={config.num_hidden_layers}"
    raise InputError(file.path, f"metadata disagree with tensors: {what}", where)


def _check_vocabulary(file: Gguf, size: int) -> None:
    tokens = file.metadata.get(TOKENS)
    count = getattr(tokens, "count", None)
    if tokens is not None and count != size:
        what = f"{TOKENS} has {show(count)} tokens, but the embedding has {size} rows"
        raise InputError(file.path, f"metadata disagree with tensors: {what}")


def _ends(file: Gguf, vocab_size: int) -> frozenset[int]:
    return frozenset(_named(file, ENDS, vocab_size)) | _ends_by_name(file)


def _named(file: Gguf, keys: tuple[str, ...], vocab_size: int) -> list[int]:
    """Return the ids of special tokens, of those that the file names."""
    found = {key: file.metadata[key] for key in keys if key in file.metadata}
    for key, token in found.items():
        if type(token) is not int or not 0 <= token < vocab_size:
            what = f"bad token id {show(token, 40)} in {key}"
            raise InputError(file.path, what, f"ids go from 0 to {vocab_size - 1}")
    return [int(token) for token in found.values() if isinstance(token, int)]


def _ends_by_name(file: Gguf) -> frozenset[int]:
    """Return the tokens that llama.cpp knows for ends by what they are called."""
    tokens = file.metadata.get(TOKENS)
    if file.metadata.get("tokenizer.ggml.model") != "gemma4" or not isinstance(tokens, Array):
        return frozenset()
    listed = file.array(TOKENS)
    return frozenset(number for number, token in enumerate(listed) if token in GEMMA4_ENDS)
