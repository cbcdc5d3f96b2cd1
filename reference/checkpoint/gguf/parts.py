"""A model in several GGUF files: `NAME-00001-of-00003.gguf` and its like, which lie side by side.

The first part has the metadata of the whole, and every part says which it is, of how many, and how
many tensors they have together. As in llama.cpp the first part is the one to be opened.

Source: `add_shard_kv_data` in gguf-py/gguf/gguf_writer.py, src/llama-model-loader.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.folder import exists_in, file_in
from lockstep.reference.checkpoint.gguf.file import COUNT, GgufFile
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.checkpoint.gguf.tensors import TENSOR_LIMIT
from lockstep.reference.checkpoint.spans import Spans

NUMBER, TENSORS = "split.no", "split.tensors.count"
OWN_KEYS = (NUMBER, "general.alignment")  # those in which parts may differ
NAME = re.compile(r"(.+-)[0-9]{5}-of-[0-9]{5}(\.[^.]+)", re.DOTALL)
PART_LIMIT = 1_000


class GgufParts:
    """Several files as one: the metadata of the first, the tensors of all."""

    def __init__(self, parts: list[GgufFile]) -> None:
        self.path, self.metadata = parts[0].path, parts[0].metadata
        self.array = parts[0].array
        self.entries = {name: one for part in parts for name, one in part.entries.items()}
        self.warnings = [f"{part.path.name}: {text}" for part in parts for text in part.warnings]
        self._homes = {name: part for part in parts for name in part.entries}

    def read(self, name: str, room: np.ndarray | None = None) -> Any:
        return self._home(name).read(name, room)

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        return self._home(name).read_rows(name, start, stop)

    def read_part(self, name: str, rows: Spans | None, columns: Spans | None, width: int) -> Any:
        return self._home(name).read_part(name, rows, columns, width)

    def _home(self, name: str) -> GgufFile:
        if name not in self._homes:
            raise KeyError(f"no tensor {show(name)} in {self.path}")
        return self._homes[name]


Gguf = GgufFile | GgufParts


def open_gguf(path: Path) -> Gguf:
    """Open a GGUF file, and the other parts of its model if it is the first of several.

    Raises InputError if a part is missing, unsound, not the part that its name says, or does not
    belong to the others.
    """
    file = GgufFile(path)
    if COUNT not in file.metadata:
        return file
    count = _number(file, COUNT, low=0, high=PART_LIMIT)
    if count < 2:
        return file
    _check_first(file, count)
    parts = [file, *(_part(file, number, count) for number in range(1, count))]
    _check_tensors(parts)
    return GgufParts(parts)


def _check_first(file: GgufFile, count: int) -> None:
    number = _number(file, NUMBER, low=0, high=count - 1)
    if number:
        hint = f", {show(_name(file.path, 0, count))}" if NAME.fullmatch(file.path.name) else ""
        raise InputError(file.path, f"is part {number + 1} of {count}: give the first one{hint}")
    if file.path.name != _name(file.path, 0, count):
        end = f"-00001-of-{count:05d}.gguf"
        raise InputError(file.path, f"is part 1 of {count}, its name must end with {end}")
    _number(file, TENSORS, low=1, high=TENSOR_LIMIT)


def _part(first: GgufFile, number: int, count: int) -> GgufFile:
    """Open another part, and check that it is the one that it should be."""
    folder, name = first.path.parent, _name(first.path, number, count)
    if not exists_in(folder, name):
        what = f"part {number + 1} of {count} is missing"
        raise InputError(first.path, what, f"there is no {show(name)} beside it")
    part = GgufFile(file_in(folder, name))
    wanted = {NUMBER: number, COUNT: count, TENSORS: first.metadata.get(TENSORS)}
    for key, value in wanted.items():
        if part.metadata.get(key) != value or type(part.metadata.get(key)) is not int:
            what = f"{key} must be {show(value, 40)} in part {number + 1} of {count}"
            raise InputError(part.path, what, f"found {show(part.metadata.get(key), 40)}")
    for key, value in part.metadata.items():
        other = first.metadata.get(key, value)
        if key not in OWN_KEYS and not isinstance(value, Array) and other != value:
            what = f"metadata {show(key)} is {show(value, 40)}, in part 1 it is {show(other, 40)}"
            raise InputError(part.path, what)
    return part


def _check_tensors(parts: list[GgufFile]) -> None:
    """Check that every tensor is in one part, and that none is missing."""
    wanted = parts[0].metadata[TENSORS]
    homes: dict[str, int] = {}
    for number, part in enumerate(parts, 1):
        for name in part.entries:
            if name in homes:
                what = f"tensor {show(name)} is in part {homes[name]} and in part {number}"
                raise InputError(part.path, what)
            homes[name] = number
    if len(homes) != wanted:
        what = f"the {len(parts)} parts have {len(homes)} tensors, {TENSORS} is {wanted}"
        raise InputError(parts[0].path, what)


def _number(file: GgufFile, key: str, *, low: int, high: int) -> int:
    found = file.metadata.get(key)
    if type(found) is not int or not low <= found <= high:
        what = f"metadata {key} must be an integer from {low} to {high}"
        shown = "nothing" if found is None else show(found, 40)
        raise InputError(file.path, what, f"found {shown}")
    return found


def _name(path: Path, number: int, count: int) -> str:
    """Return the name of a part beside `path`, counted from 0; "" if `path` has no such name."""
    found = NAME.fullmatch(path.name)
    return f"{found[1]}{number + 1:05d}-of-{count:05d}{found[2]}" if found else ""
