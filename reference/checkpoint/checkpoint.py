"""A model's folder as named tensors: validated when it is opened, read when asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from lockstep.reference.checkpoint.architectures import Architecture
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor, Packed
from lockstep.reference.checkpoint.config import config_in, read_config
from lockstep.reference.checkpoint.config_keys import names_of
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import show
from lockstep.reference.checkpoint.generation import EOS, GenerationConfig, read_generation
from lockstep.reference.checkpoint.layout import Stored, resolve_layout
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantization import parse_quantization
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.checkpoint.resolve import is_gguf, resolve_model
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.sharded import Shards
from lockstep.reference.checkpoint.sources import Source
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.checkpoint.stack import Stack
from lockstep.reference.checkpoint.unread import Unread
from lockstep.reference.consecutive import runs

LAYER = re.compile(r"\.layers\.\d+\.")
Rooms = Mapping[str, np.ndarray]  # of bytes, by the names of the files' tensors
NO_ROOMS: Rooms = {}


@dataclass(frozen=True)
class StoredFormat:
    """How a tensor lies in its file, known without reading it.

    `shape` is the logical shape. For a packed weight `dtype` is that of the codes, `scale_dtype`
    that of scales and biases, and `nbytes` counts them too.
    """

    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    group_size: int | None
    mode: str | None
    scale_dtype: str | None
    nbytes: int

    @property
    def packed(self) -> bool:
        """Whether weights share scales: MLX's packing, or blocks, which `dtype` then names."""
        return self.bits is not None or self.dtype in BLOCKS


class Files(Protocol):
    """What holds the tensors: the shards of a folder, or one GGUF file."""

    def entry(self, name: str) -> Entry: ...
    def read(self, name: str, room: np.ndarray | None = None) -> Any: ...
    def read_rows(self, name: str, start: int, stop: int) -> Any: ...
    def read_part(
        self, name: str, rows: Spans | None, columns: Spans | None, width: int
    ) -> Any: ...


class Checkpoint:
    """Named tensors of one model, with Hugging Face names. Made by `open_checkpoint`.

    `architecture` is the `model_type`; `model` names the file in `models/` that runs it.
    `position_limit` is how many positions have a learned embedding, None if none is learned.

    Nothing is kept in memory but names and shapes: every `tensor` call reads from the disk.
    """

    def __init__(
        self,
        path: Path,
        architecture: Architecture,
        config: Any,
        generation: GenerationConfig,
        shards: Files,
        layout: dict[str, Stored],
        warnings: list[str],
        beside: Mapping[str, Stored] = MappingProxyType({}),
    ) -> None:
        self.path, self.config, self.generation = path, config, generation
        self.architecture, self.model = architecture.name, architecture.model_of(config)
        self.position_limit = architecture.position_limit(config)
        self.warnings = warnings
        self._shards, self._layout, self._beside = shards, layout, beside

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the architecture, in the order of the forward pass."""
        return tuple(self._layout)

    def has(self, name: str) -> bool:
        return name in self._layout

    @cached_property
    def unused(self) -> dict[str, Stored]:
        """Tensors that the model does not need, though others do; `tensor` reads them too.

        A layer that takes its keys of an earlier one has projections of its own all the same, and a
        file may have a head though the config ties it: told only if it is not the embedding.
        """
        found = dict(self._beside)
        for name, stored in self._layout.items():
            for layer in range(self.config.num_hidden_layers) if LAYER.search(name) else ():
                other = LAYER.sub(f".layers.{layer}.", name)
                known = other in self._layout or other in found
                if not known and (twin := self._twin(stored, layer)) is not None:
                    found[other] = twin
        return found

    def _twin(self, stored: Stored, layer: int) -> Stored | None:
        """Return where a like tensor of another layer lies, None if there is none of its shape."""
        names = tuple(LAYER.sub(f".layers.{layer}.", name) for name in stored.source.names)
        kinds = (None,) if stored.packing is None else stored.packing.parts
        for name, other in zip(stored.source.names, names, strict=True):
            for kind in kinds:
                try:
                    twin = self._shards.entry(_named(other, kind))
                except KeyError:
                    return None
                if twin.shape != self._shards.entry(_named(name, kind)).shape:
                    return None
        return replace(stored, source=replace(stored.source, names=names))

    def tensor(self, name: str, rooms: Rooms = NO_ROOMS) -> np.ndarray | Packed:
        """Read one tensor by its full name, such as `model.norm.weight`.

        What of it has a room, as large as `parts` says, is read there.
        Raises KeyError for a name the model has not, InputError if the file changed meanwhile.
        """
        stored = self._stored(name)
        return _made(stored, lambda kind: stored.source.whole(self._reader(kind, rooms)))

    def parts(self, name: str) -> list[tuple[str, int]]:
        """Return the files' tensors that make one tensor as they lie, and how many bytes each has.

        There are none if it is made of them otherwise.
        """
        stored = self._stored(name)
        if not stored.source.as_it_lies:
            return []
        kinds = (None,) if stored.packing is None else stored.packing.parts
        names = [_named(stored.source.names[0], kind) for kind in kinds]
        entries = map(self._shards.entry, names)
        return [(one, entry.stop - entry.start) for one, entry in zip(names, entries, strict=True)]

    def matrix(self, name: str) -> np.ndarray | Packed | Unread:
        """Return a matrix that is read some rows at a time where it is dense and lies by rows.

        Any other is read whole. Raises as `tensor` does, once rows are asked for.
        """
        stored, source = self.stored(name), self.source(name)
        if stored.packed or not source.as_it_lies:
            return self.tensor(name)
        dtype = numpy_dtype(stored.dtype)
        return Unread(stored.shape, dtype, lambda start, stop: self.tensor_rows(name, start, stop))

    def tensor_rows(self, name: str, start: int, stop: int) -> np.ndarray | Packed:
        """Read rows start to stop of one tensor, and no other bytes of it if it lies by rows."""
        stored, span = self._stored(name), slice(start, stop)

        def part(kind: str | None) -> np.ndarray:
            return stored.source.rows(self._reader(kind), self._row_reader(kind), span)

        return _made(stored, part)

    def tensor_at(self, name: str, rows: Sequence[int]) -> np.ndarray | Packed:
        """Read some rows of one tensor, in the order of `rows`, and no other bytes of it."""
        stored = self._stored(name)

        def part(kind: str | None) -> Any:
            read, read_rows = self._reader(kind), self._row_reader(kind)
            if stored.source.transposed:  # its rows do not lie together
                return stored.source.whole(read)[list(rows)]
            spans = (slice(*run) for run in runs(rows))
            return joined([stored.source.rows(read, read_rows, span) for span in spans])

        return _made(stored, part)

    def tensor_part(
        self, name: str, rows: Spans | None, columns: Spans | None, *, matrix: int = 0
    ) -> np.ndarray | Packed:
        """Read some rows, and of these some columns, and no other bytes; None is all of them.

        Of a stack, those of the matrix with this number. Columns lie on the borders of groups.
        """
        stored = self._stored(name)

        def part(kind: str | None) -> Any:
            def read(one: str, *where: Any) -> Any:
                return self._shards.read_part(_named(one, kind), *where)

            return stored.source.part(read, stored.shape, rows, columns, matrix)

        return _made(stored, part)

    def stack(self, name: str) -> Stack:
        """Return a stack of matrices, each of which is read when it is asked for."""
        shape = self._stored(name).shape
        return Stack(shape, lambda index: self.tensor_rows(name, index, index + 1)[0])

    def stored(self, name: str) -> StoredFormat:
        """Return how a tensor is stored, without reading it."""
        stored = self._stored(name)
        kinds = (None,) if stored.packing is None else stored.packing.parts
        entries = [
            [self._shards.entry(_named(one, kind)) for one in stored.source.names] for kind in kinds
        ]
        nbytes = sum(entry.stop - entry.start for part in entries for entry in part)
        nbytes //= 1 if stored.source.half is None else 2
        dtype, shape = entries[0][0].dtype, stored.shape
        if stored.packing is None:
            return StoredFormat(dtype, shape, None, None, None, None, nbytes)
        how, scale_dtype = stored.packing, entries[1][0].dtype
        return StoredFormat(dtype, shape, how.bits, how.group_size, how.mode, scale_dtype, nbytes)

    def source(self, name: str) -> Source:
        """Return where a tensor lies in the files: under which names, and which way round."""
        return self._stored(name).source

    def _reader(self, kind: str | None, rooms: Rooms = NO_ROOMS) -> Callable[[str], np.ndarray]:
        def read(name: str) -> np.ndarray:
            own = _named(name, kind)
            return self._shards.read(own, rooms.get(own))

        return read

    def _row_reader(self, kind: str | None) -> Callable[[str, int, int], np.ndarray]:
        return lambda name, start, stop: self._shards.read_rows(_named(name, kind), start, stop)

    def _stored(self, name: str) -> Stored:
        if name in self._layout:
            return self._layout[name]
        if name not in self.unused:
            raise KeyError(f"no tensor {show(name)} in {self.path}")
        return self.unused[name]


def open_checkpoint(path: str | Path, *, ignore_config: Collection[str] = ()) -> Checkpoint:
    """Open a model's folder, a hub name that is in the local Hugging Face cache, or a GGUF file.

    `ignore_config` lists unknown keys of config.json that may pass. Raises InputError for anything
    that is missing, unknown, inconsistent or unsound, before any tensor is read. A head
    that is stored although it is tied is compared with the embedding.
    """
    folder, ignore = resolve_model(path), names_of(ignore_config)
    if is_gguf(folder):
        from lockstep.reference.checkpoint.gguf.checkpoint import gguf_parts

        return Checkpoint(*gguf_parts(folder, ignore=ignore))
    parsed = read_config(config_in(folder), ignore=ignore)
    warnings = list(parsed.warnings)
    declared = parse_quantization(
        parsed.quantization, parsed.quantization_config, parsed.path, ignore, warnings
    )
    ends, mask = parsed.eos_token_id, parsed.mask_token_id
    size = parsed.config.vocab_size
    generation = read_generation(folder, parsed.path, ends, size, mask, endless=EOS in ignore)
    shards = Shards(folder)
    layout, head = resolve_layout(shards, parsed.architecture, parsed.config, declared, warnings)
    warnings += shards.warnings
    return Checkpoint(
        folder, parsed.architecture, parsed.config, generation, shards, layout, warnings, head
    )


def _made(stored: Stored, part: Callable[[str | None], np.ndarray]) -> np.ndarray | Packed:
    """Make a dense tensor of its one part, a packed one of its two or three."""
    if stored.packing is None:
        return part(None)
    bits, group_size, mode = stored.packing.bits, stored.packing.group_size, stored.packing.mode
    packed, scales, *biases = map(part, stored.packing.parts)
    if not biases:
        return MinifloatTensor(packed, scales, mode)
    return QuantizedTensor(packed, scales, biases[0], bits, group_size, mode)


def joined(parts: list[Any]) -> Any:
    """Put rows below each other: arrays, or blocks that stay packed."""
    if isinstance(parts[0], BlockTensor):
        return replace(parts[0], blocks=np.concatenate([one.blocks for one in parts]))
    return np.concatenate(parts)


def _named(name: str, kind: str | None) -> str:
    return name if kind is None else f"{name.removesuffix('.weight')}.{kind}"
