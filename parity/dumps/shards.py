"""One dump in several safetensors files of a folder, as models are published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from lockstep.reference.checkpoint.errors import InputError, show

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
    """Return the safetensors files of a folder. Raises: InputError if they are too many."""
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if len(paths) > SHARDS:
        raise InputError(folder, f"{len(paths)} safetensors files, the limit is {SHARDS}")
    return paths


def owners(folder: Path, shards: Sequence[AnyShard]) -> dict[str, AnyShard]:
    """Return which shard holds each tensor. Raises: InputError if two do."""
    found: dict[str, AnyShard] = {}
    for shard in shards:
        for name in shard.shapes:
            if (other := found.setdefault(name, shard)) is not shard:
                both = f"{other.path.name} and {shard.path.name} both hold it; {RANKS}"
                raise InputError(folder, both, show(name, 60))
    return found


def said_by_all(shards: Sequence[Shard]) -> dict[str, str]:
    """Return what shards say of the run. Raises: InputError if they contradict each other."""
    about: dict[str, str] = {}
    for shard in shards:
        for key, text in shard.about.items():
            if about.setdefault(key, text) != text:
                raise InputError(shard.path, f"another file says another {show(key, 40)}")
    return about
