"""One dump in several safetensors files of a folder, as models are published."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.checkpoint.safetensors_header import HEADER_LIMIT

SHARDS = 10_000
RANKS = "give ranks of one port as 'port.{rank}.safetensors' with --tensor-parallel N"


class Shard(Protocol):
    """What one file holds, and what it says of the run."""

    @property
    def path(self) -> Path: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def about(self) -> Mapping[str, str]: ...


AnyShard = TypeVar("AnyShard", bound=Shard)


def shards_of(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises: InputError if they are too many, lie in folders of it, or beside .npy files: what else
    is there would be left out without a word.
    """
    found = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else []
    paths = [path for path in found if path.parent == folder]
    if len(paths) > SHARDS:
        raise InputError(folder, f"{len(paths)} safetensors files, the limit is {SHARDS}")
    if below := [path for path in found if path.parent != folder]:
        what = "shards of one dump lie side by side, but this one is in a folder below"
        raise InputError(folder, what, show(below[0].relative_to(folder).as_posix(), 60))
    array = next(folder.rglob("*.npy"), None) if paths else None
    if array is not None:
        what = "holds .npy files beside .safetensors: one dump is of one kind"
        raise InputError(folder, what, show(array.relative_to(folder).as_posix(), 60))
    return paths


def opened(folder: Path, paths: Iterable[Path]) -> Iterator[SafetensorsFile]:
    """Open shards one by one. Raises: InputError when their headers are more than one file's may be
    together: to read them takes time and memory by their size.
    """
    size = 0
    for path in paths:
        file = SafetensorsFile(path)
        size += file.header_size
        if size > HEADER_LIMIT:
            what = f"headers of its shards are over the limit of {HEADER_LIMIT} bytes together"
            raise InputError(folder, what, show(path.name, 60))
        yield file


def claim(owner: dict[str, AnyShard], shard: AnyShard) -> None:
    """Note which tensors a shard holds. Raises: InputError if another one holds one of them."""
    for name in shard.shapes:
        if (other := owner.setdefault(name, shard)) is not shard:
            both = f"{other.path.name} and {shard.path.name} both hold it; {RANKS}"
            raise InputError(shard.path.parent, both, show(name, 60))


def said_by_all(shards: Sequence[Shard]) -> dict[str, str]:
    """Return what shards say of the run. Raises: InputError if they contradict each other."""
    about: dict[str, str] = {}
    for shard in shards:
        for key, text in shard.about.items():
            if about.setdefault(key, text) != text:
                raise InputError(shard.path, f"another file says another {show(key, 40)}")
    return about
