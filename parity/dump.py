"""Read a trace or a bare dump, whoever wrote it: safetensors, .npz, or a folder of .npy files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.parity.npy import open_folder, open_npz
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

FORMAT, VERSION = "lockstep-trace", "1"


@dataclass(frozen=True)
class Dump:
    """Tensors by the names they were dumped under. Each is read when it is asked for, and not kept.

    `about` is the metadata of a trace, empty for a bare dump; `shapes` needs no tensor to be read.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_trace(self) -> bool:
        return self.about.get("format") == FORMAT

    @property
    def tokens(self) -> list[int] | None:
        """The prompt that the trace was made from, None if it does not say.

        Raises: InputError if it says nonsense.
        """
        return self.ids("tokens")

    @property
    def decoded(self) -> list[int]:
        """What was fed after the prompt, a token a step; empty if the trace does not say."""
        return self.ids("decoded") or []

    def ids(self, key: str) -> list[int] | None:
        if key not in self.about:
            return None
        try:
            tokens = json.loads(self.about[key])
        except (ValueError, RecursionError):
            tokens = None
        if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
            what = f"{key} must be a JSON list of token ids, not {show(self.about[key], 40)}"
            raise InputError(self.path, what, "__metadata__")
        return tokens


def open_dump(path: str | Path) -> Dump:
    """Open a file or folder of activations.

    Raises: InputError if it is none, has no tensors, or is a trace of another version.
    """
    path = Path(path)
    if path.is_dir():
        dump = Dump(path, *open_folder(path))
    elif path.suffix == ".npz":
        dump = Dump(path, *open_npz(path))
    else:
        dump = open_safetensors(path)
    if not dump.shapes:
        raise InputError(path, "holds no tensors, so there is nothing to compare")
    return dump


def open_safetensors(path: Path) -> Dump:
    file = SafetensorsFile(path)
    about = file.metadata
    if about.get("format") == FORMAT and about.get("version") != VERSION:
        found = show(about.get("version"))
        raise InputError(path, f"trace version {found}, but should be {VERSION!r}", "__metadata__")
    shapes = {name: tuple(entry.shape) for name, entry in file.entries.items()}
    return Dump(path, shapes, partial(SafetensorsFile.read, file), about)
