"""The tensors of a folder, whether they lie in one safetensors file or in several with an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.folder import check_name, exists_in, file_in, foreign_link
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.checkpoint.safetensors_header import Entry
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
INDEX_LIMITS = JsonLimits(size=32 << 20, entries=1_000_000, depth=8)
SHARD_LIMIT = 10_000
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")


class Shards:
    """All tensors of a model's folder by name. Everything is validated on construction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self._file_of = self._open()
        files = {id(file): file for file in self._file_of.values()}
        for file in files.values():
            self.warnings += [f"{file.path.name}: {text}" for text in file.warnings]
            if foreign_link(file.path):
                text = "has another name elsewhere and belongs to another user"
                self.warnings.append(f"{file.path.name}: {text}")

    @property
    def names(self) -> list[str]:
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def entry(self, name: str) -> Entry:
        return self._file_of[name].entries[name]

    def path_of(self, name: str) -> Path:
        return self._file_of[name].path

    def read(self, name: str, room: np.ndarray | None = None) -> np.ndarray:
        return self._file_of[name].read(name, room)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self._file_of[name].read_rows(name, start, stop)

    def read_part(
        self, name: str, rows: Spans | None, columns: Spans | None, width: int
    ) -> np.ndarray:
        return self._file_of[name].read_part(name, rows, columns, width)

    def _open(self) -> dict[str, SafetensorsFile]:
        single, index = exists_in(self.folder, SINGLE), exists_in(self.folder, INDEX)
        if index:
            return self._open_index(single)
        if single:
            file = SafetensorsFile(file_in(self.folder, SINGLE))
            return dict.fromkeys(file.entries, file)
        raise InputError(self.folder, _nothing_to_read(self.folder))

    def _open_index(self, single: bool) -> dict[str, SafetensorsFile]:
        path = file_in(self.folder, INDEX)
        raw = read_json_object(path, subject="index", limits=INDEX_LIMITS)
        shard_of = _weight_map(raw, path)
        shards = sorted(set(shard_of.values()))
        _check_shards(shards, single, self.folder, path)
        files = {name: SafetensorsFile(file_in(self.folder, name)) for name in shards}
        _check_agreement(shard_of, files, path)
        self._check_total_size(raw, files)
        return {tensor: files[shard] for tensor, shard in shard_of.items()}

    def _check_total_size(self, raw: dict[str, Any], files: dict[str, SafetensorsFile]) -> None:
        metadata = raw.get("metadata")
        said = metadata.get("total_size") if isinstance(metadata, dict) else None
        real = sum(e.stop - e.start for file in files.values() for e in file.entries.values())
        if said is not None and (type(said) not in (int, float) or said != real):
            text = f"{INDEX}: total_size={show(said, 30)}, but the tensors take {real} bytes"
            self.warnings.append(text)


def _weight_map(raw: dict[str, Any], path: Path) -> dict[str, str]:
    shard_of = raw.get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        what = "bad index: weight_map must be an object that names a shard for each tensor"
        raise InputError(path, what, f"got {show(shard_of, 40)}")
    distinct: set[str] = set()
    for name in shard_of.values():
        # Every entry is checked for being text; each distinct name is judged once.
        if not isinstance(name, str) or name not in distinct:
            distinct.add(check_name(name, path))
        if len(distinct) > SHARD_LIMIT:
            raise InputError(path, f"too many shards: the limit is {SHARD_LIMIT}")
    return shard_of


def _check_shards(shards: list[str], single: bool, folder: Path, path: Path) -> None:
    if single and SINGLE not in shards:
        what = f"ambiguous: the folder also holds {SINGLE}, which the index does not name"
        raise InputError(path, what)
    # macOS would open the same file for both names.
    folded: dict[str, str] = {}
    for name in shards:
        if not name.endswith(".safetensors"):
            what = f"shard {show(name)} is not a .safetensors file: pickles are never read"
            raise InputError(path, what)
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            raise InputError(path, f"ambiguous shard names {show(twin)} and {show(name)}")
        if not exists_in(folder, name):
            raise InputError(path, f"missing shard {show(name)}")


def _check_agreement(
    shard_of: dict[str, str], files: dict[str, SafetensorsFile], path: Path
) -> None:
    """Check that each shard holds exactly the tensors that the index says it holds."""
    absent = [tensor for tensor, shard in shard_of.items() if tensor not in files[shard].entries]
    if absent:
        where = f"first looked for in {show(shard_of[absent[0]], 60)}"
        what = f"tensors that the index lists are not in their shard: {show_names(absent)}"
        raise InputError(path, what, where)
    for shard, file in files.items():
        extra = [tensor for tensor in file.entries if shard_of.get(tensor) != shard]
        if extra:
            what = f"tensors that the index does not list for this shard: {show_names(extra)}"
            raise InputError(file.path, what)


def _nothing_to_read(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"cannot be listed: {error.strerror}"
    for name in names:
        if name.endswith(PICKLES):
            return f"no {SINGLE}; {show(name, 60)} is a pickle, which is never read"
        if name.endswith(".gguf"):
            return f"no {SINGLE}; a GGUF file is a model by itself: give {show(name, 60)}"
    return f"no {SINGLE} and no {INDEX}"
