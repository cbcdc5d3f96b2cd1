"""A model's folder as named tensors: validated when it is opened, read when asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.architectures import Architecture
from lockstep.reference.checkpoint.config import CONFIG, read_config
from lockstep.reference.checkpoint.errors import show
from lockstep.reference.checkpoint.folder import file_in
from lockstep.reference.checkpoint.generation import GenerationConfig, read_generation
from lockstep.reference.checkpoint.layout import Stored, resolve_layout
from lockstep.reference.checkpoint.quantization import AFFINE, parse_quantization
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.checkpoint.resolve import resolve_model
from lockstep.reference.checkpoint.sharded import Shards


@dataclass(frozen=True)
class StoredFormat:
    """How a tensor lies in its file, known without reading it.

    `shape` is the logical shape. For a packed weight `dtype` is that of the codes, `scale_dtype`
    that of scales and biases, and `nbytes` counts all three.
    """

    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    group_size: int | None
    mode: str | None
    scale_dtype: str | None
    nbytes: int


class Checkpoint:
    """Named tensors of one model, with Hugging Face names. Made by `open_checkpoint`.

    `architecture` is the `model_type`; `model` names the file in `models/` that runs it.

    Nothing is kept in memory but names and shapes: every `tensor` call reads from the disk.
    """

    def __init__(
        self,
        path: Path,
        architecture: Architecture,
        config: Any,
        generation: GenerationConfig,
        shards: Shards,
        layout: dict[str, Stored],
        warnings: list[str],
    ) -> None:
        self.path, self.config, self.generation = path, config, generation
        self.architecture, self.model = architecture.name, architecture.model
        self.warnings = warnings
        self._shards, self._layout = shards, layout

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the architecture, in the order of the forward pass."""
        return tuple(self._layout)

    def has(self, name: str) -> bool:
        return name in self._layout

    def tensor(self, name: str) -> np.ndarray | QuantizedTensor:
        """Read one tensor by its full name, such as `model.norm.weight`.

        Raises KeyError for a name the model has not, InputError if the file changed meanwhile.
        """
        stored = self._stored(name)
        if stored.packing is None:
            return self._shards.read(name)
        packed, scales, biases = map(self._shards.read, _parts(name))
        bits, group_size = stored.packing.bits, stored.packing.group_size
        return QuantizedTensor(packed, scales, biases, bits, group_size, AFFINE)

    def tensor_rows(self, name: str, start: int, stop: int) -> np.ndarray | QuantizedTensor:
        """Read rows start to stop of one tensor, and no other bytes of it."""
        stored = self._stored(name)
        if stored.packing is None:
            return self._shards.read_rows(name, start, stop)
        packed, scales, biases = (
            self._shards.read_rows(part, start, stop) for part in _parts(name)
        )
        bits, group_size = stored.packing.bits, stored.packing.group_size
        return QuantizedTensor(packed, scales, biases, bits, group_size, AFFINE)

    def stored(self, name: str) -> StoredFormat:
        """Return how a tensor is stored, without reading it."""
        stored = self._stored(name)
        entry = self._shards.entry(name)
        if stored.packing is None:
            nbytes = entry.stop - entry.start
            return StoredFormat(entry.dtype, stored.shape, None, None, None, None, nbytes)
        parts = [self._shards.entry(part) for part in _parts(name)]
        return StoredFormat(
            entry.dtype,
            stored.shape,
            stored.packing.bits,
            stored.packing.group_size,
            AFFINE,
            parts[1].dtype,
            sum(part.stop - part.start for part in parts),
        )

    def _stored(self, name: str) -> Stored:
        if name not in self._layout:
            raise KeyError(f"no tensor {show(name)} in {self.path}")
        return self._layout[name]


def open_checkpoint(path: str | Path, *, ignore_config: Collection[str] = ()) -> Checkpoint:
    """Open a model's folder, or a hub name that is in the local Hugging Face cache.

    `ignore_config` lists unknown keys of config.json that may pass. Raises InputError for anything
    that is missing, unknown, inconsistent or unsound, before any tensor is read.
    """
    folder = resolve_model(path)
    ignore = frozenset(ignore_config)
    parsed = read_config(file_in(folder, CONFIG), ignore=ignore)
    warnings = list(parsed.warnings)
    declared = parse_quantization(
        parsed.quantization, parsed.quantization_config, parsed.path, ignore, warnings
    )
    generation = read_generation(folder, parsed.path, parsed.eos_token_id, parsed.config.vocab_size)
    shards = Shards(folder)
    layout = resolve_layout(shards, parsed.architecture, parsed.config, declared, warnings)
    warnings += shards.warnings
    return Checkpoint(
        folder, parsed.architecture, parsed.config, generation, shards, layout, warnings
    )


def _parts(name: str) -> tuple[str, str, str]:
    module = name.removesuffix(".weight")
    return name, f"{module}.scales", f"{module}.biases"
