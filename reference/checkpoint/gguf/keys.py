"""The keys of one architecture in the metadata of a GGUF file: `llama.block_count` and its like."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show, show_names
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.checkpoint.gguf.parts import Gguf

IGNORED = {
    "tensor_data_layout": "says who wrote the first file; the rows have llama.cpp's order",
    "rope.scaling.finetuned": "says how the model was trained",
}


class Keys:
    """The keys of one architecture, remembered as they are looked at."""

    def __init__(self, file: Gguf, kind: str) -> None:
        self.file, self.kind = file, kind
        self._used: set[str] = set()

    def value(self, name: str) -> Any:
        """Return a single value, or what all items of an array are; None if there is none."""
        key = f"{self.kind}.{name}"
        self._used.add(key)
        found = self.file.metadata.get(key)
        if not isinstance(found, Array):
            return found
        items = self.file.array(key) if found.count <= 65_536 else []
        if not items or any(item != items[0] for item in items):
            what = f"{show(key)} differs between layers, which is not read"
            raise InputError(self.file.path, what, f"found {show(items)}")
        return items[0]

    def number(self, name: str, missing: float | None) -> Any:
        """Return a float32 as the shortest decimal for it: 1e-06, not 9.999999974752427e-07."""
        found = self.value(name)
        if found is None:
            return missing
        return float(str(np.float32(found))) if type(found) is float else found

    def integer(self, name: str, *, low: int, high: int, missing: int | None = None) -> int:
        """Return an integer in [low, high]; None as `missing` refuses a file without it."""
        found = self.value(name)
        found = missing if found is None else found
        if type(found) is not int or not low <= found <= high:
            kind = "a positive integer" if low == 1 else "an integer"
            self.refuse(name, f"must be {kind} from {low} to {high}", found)
        return found

    def each(self, name: str, layers: int) -> list[Any]:
        """Return what a key says of each layer: its array, or its one value for all."""
        key = f"{self.kind}.{name}"
        self._used.add(key)
        found = self.file.metadata.get(key)
        if not isinstance(found, Array):
            return [found] * layers
        if found.count != layers:
            where = f"{self.kind}.block_count={layers}"
            what = f"{show(key)} lists {found.count} layers, it must list {layers}"
            raise InputError(self.file.path, what, where)
        return self.file.array(key)

    def refuse(self, name: str, demand: str, found: object) -> NoReturn:
        what = f"field {show(f'{self.kind}.{name}')} {demand}"
        shown = "nothing" if found is None else show(found, 60)
        raise InputError(self.file.path, what, f"found {shown}")

    def check_widths(self, head_dim: Any, *names: str) -> None:
        """Refuse heads of which these keys give another width than `head_dim`."""
        if type(head_dim) is not int:
            what = f"field {show(f'{self.kind}.attention.key_length')} must be an integer"
            raise InputError(self.file.path, what, f"found {show(head_dim, 40)}")
        for name in names:
            found = self.value(name)
            if found is not None and found != head_dim:
                what = f"field {show(f'{self.kind}.{name}')} must be {show(head_dim, 40)}"
                raise InputError(self.file.path, what, f"found {show(found, 40)}")

    def check_leftovers(self, ignore: Collection[str], warnings: list[str]) -> None:
        """Refuse keys that nobody asked for, but those that are ignored or hold nothing."""
        own = [key for key in self.file.metadata if key.startswith(f"{self.kind}.")]
        reasons = {f"{self.kind}.{name}" for name in IGNORED}
        unknown = [key for key in own if key not in self._used | reasons]
        refused = [key for key in unknown if key not in ignore and self.file.metadata[key]]
        if refused:
            way = f"pass --ignore-config {show(refused[0], 60)[1:-1]} if it changes nothing"
            what = f"unknown metadata {show_names(refused, 2)}; {way}"
            raise InputError(
                self.file.path, what, f"found {show(self.file.metadata[refused[0]], 40)}"
            )
        if passed := [key for key in unknown if key not in refused]:
            warnings.append(f"unknown metadata ignored: {show_names(passed)}")
