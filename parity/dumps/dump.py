"""Read a trace or a bare dump, whoever wrote it: safetensors, .npz, or a folder of files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.npy import open_folder, open_npz, parts_of_file
from lockstep.parity.dumps.parts import Parts, held
from lockstep.parity.dumps.pickles import PICKLED, is_pickle
from lockstep.parity.dumps.shards import claim, opened, said_by_all, shards_of
from lockstep.reference.checkpoint.dtypes import numpy_dtype
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

FORMAT, VERSION = "lockstep-trace", "1"
SKETCHES = (
    "holds sketches, which `lockstep diff` compares with others; all else needs the tensors "
    "themselves: trace those that differ, with --taps"
)
LONGEST_ID = 2**63
TEXTS = ("format", "version", "prompt", "dtype", "padding", "backend", "library")  # of a .json
WORDS = JsonLimits(size=16 << 20, entries=2_000_000, depth=16)


@dataclass(frozen=True)
class Dump:
    """Tensors by the names they were dumped under. Each is read when it is asked for, and not kept.

    `about` is the metadata of a trace, empty for a bare dump; `shapes` needs no tensor to be read.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    about: Mapping[str, str] = field(default_factory=dict)
    parted: Callable[[str], Parts] | None = None

    def parts(self, name: str) -> Parts:
        """Return a tensor to be read a part at a time, where its file lets it.

        Raises: InputError if it has another shape by now than when the dump was opened.
        """
        tensor = held(self.read(name)) if self.parted is None else self.parted(name)
        if tensor.shape != self.shapes[name]:
            was = f"shape {show(self.shapes[name])} when it was opened, {show(tensor.shape)} now"
            raise InputError(self.path, f"file changed while reading: {was}", name)
        return tensor

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

    @property
    def fed(self) -> list[list[int]]:
        """What was fed in each step after the prompt: a token, or as many as `step_lengths` says.

        Raises: InputError if that does not add up.
        """
        ids, lengths = self.decoded, self.ids("step_lengths")
        if not ids:
            return []
        lengths = [1] * len(ids) if lengths is None else lengths
        if sum(lengths) != len(ids) or 0 in lengths:
            what = (
                f"step_lengths {show(self.about['step_lengths'], 40)} must be from 1 on, and add "
            )
            raise InputError(
                self.path, f"{what}up to the {len(ids)} ids of decoded", "__metadata__"
            )
        ends = accumulate(lengths)
        return [ids[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    @property
    def step_lengths(self) -> list[int] | None:
        """How many tokens each step of a batch was fed, None if the dump does not say: one.

        Raises: InputError if a step was fed nothing.
        """
        lengths = self.ids("step_lengths")
        if lengths is not None and 0 in lengths:
            what = f"step_lengths {show(self.about['step_lengths'], 40)} must be from 1 on"
            raise InputError(self.path, what, "__metadata__")
        return lengths

    @property
    def batch(self) -> list[list[int]] | None:
        """The prompts of a batch, without what fills them up; None if the dump is of one."""
        return self.rows("batch")

    @property
    def padding(self) -> str:
        """The side on which shorter prompts of a batch are filled up."""
        side = self.about.get("padding", "right")
        if side not in ("left", "right"):
            what = f"padding must be 'left' or 'right', not {show(side, 40)}"
            raise InputError(self.path, what, "__metadata__")
        return side

    def rows(self, key: str) -> list[list[int]] | None:
        """Return a list of ids for each row of a batch. Raises: InputError if it is none."""
        if key not in self.about:
            return None
        try:
            rows = json.loads(self.about[key])
        except (ValueError, RecursionError):
            rows = None
        if not isinstance(rows, list) or not rows or not all(map(are_short_ids, rows)):
            what = f"{key} must be a JSON list of lists of token ids, not "
            raise InputError(self.path, what + show(self.about[key], 40), "__metadata__")
        return rows

    def ids(self, key: str) -> list[int] | None:
        if key not in self.about:
            return None
        try:
            tokens = json.loads(self.about[key])
        except (ValueError, RecursionError):
            tokens = None
        if not are_ids(tokens):
            what = f"{key} must be a JSON list of token ids, not {show(self.about[key], 40)}"
            raise InputError(self.path, what, "__metadata__")
        return tokens


def are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def are_short_ids(value: object) -> bool:
    """Say whether a value is ids that an array holds: JSON has numbers of any length."""
    return isinstance(value, list) and are_ids(value) and max(value, default=0) < LONGEST_ID


def open_dump(path: str | Path, *, words: bool = False) -> Dump:
    """Open a file or folder of activations; with `words` also a .json, which has no tensors.

    Raises: InputError if it is none, has no tensors, or is a trace of another version.
    """
    path = Path(path)
    if is_pickle(path):
        raise InputError(path, PICKLED)
    if shards := shards_of(path):
        dump = open_shards(path, shards)
    elif path.is_dir():
        shapes, read = open_folder(path)
        dump = Dump(path, shapes, read,
                    parted=lambda name: parts_of_file(path / f"{name}.npy", name))  # fmt: skip
    elif path.suffix == ".npz":
        dump = Dump(path, *open_npz(path))
    elif path.suffix == ".json" and path.is_file():
        dump = open_words(path)
    else:
        dump = open_safetensors(path)
    if not dump.shapes and not (words and path.suffix == ".json"):
        raise InputError(path, f"holds no tensors{without(path)}, so there is nothing to compare")
    return dump


def without(path: Path) -> str:
    """Say what a folder lacks that holds no tensors, and what it has in their place."""
    if not path.is_dir():
        return ""
    other = next((one for one in sorted(path.iterdir()) if one.suffix == ".npz"), None)
    hint = f"; {show(other.name, 40)} is a dump of its own" if other else ""
    if other is None and any(map(is_pickle, path.iterdir())):
        hint = f"; {PICKLED}"
    return f": no .npy, no .safetensors{hint}"


def open_shards(folder: Path, paths: list[Path]) -> Dump:
    """Open files that hold one dump together. Raises: InputError if they contradict each other."""
    shards: list[Dump] = []
    owner: dict[str, Dump] = {}
    for file in opened(folder, paths):
        shards.append(dump_of(file))
        claim(owner, shards[-1])
    shapes = {name: shard.shapes[name] for name, shard in owner.items()}
    return Dump(
        folder, shapes, lambda name: owner[name].read(name), said_by_all(shards),
        parted=lambda name: owner[name].parts(name),
    )  # fmt: skip


def open_words(path: Path) -> Dump:
    """Open one JSON object that has the keys of a trace's metadata, each as the value it is."""
    found = read_json_object(path, subject="the dump", limits=WORDS)
    for key in TEXTS:
        if found.get(key) is not None and not isinstance(found[key], str):
            raise InputError(path, f"{key} must be a string, not {show(found[key], 40)}")
    about = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items() if value is not None
    }  # fmt: skip
    check_version(path, about)
    return Dump(path, {}, nothing_to_read, about)


def nothing_to_read(name: str) -> np.ndarray:
    raise KeyError(name)


def check_version(path: Path, about: Mapping[str, str]) -> None:
    if about.get("format") == "lockstep-sketch":
        raise InputError(path, SKETCHES)
    if about.get("format") == FORMAT and about.get("version") != VERSION:
        found = show(about.get("version"))
        raise InputError(path, f"trace version {found}, but should be {VERSION!r}", "__metadata__")


def open_safetensors(path: Path) -> Dump:
    return dump_of(SafetensorsFile(path))


def dump_of(file: SafetensorsFile) -> Dump:
    path, about = file.path, file.metadata
    check_version(path, about)
    shapes = {name: tuple(entry.shape) for name, entry in file.entries.items()}

    def parted(name: str) -> Parts:
        dtype = numpy_dtype(file.entries[name].dtype)
        return Parts(shapes[name], dtype, partial(file.read_numbers, name))

    return Dump(path, shapes, partial(SafetensorsFile.read, file), about, parted)
