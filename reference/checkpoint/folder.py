"""Which files a model's folder may lead to.

A file may name another file (an index names its shards) and a symbolic link may lead anywhere.
Both are kept inside: a name must be one plain component, and a link must end in the model's own
folder or, as every model in a Hugging Face cache does, among the blobs of the same repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show

PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


def check_name(name: Any, source: Path) -> str:
    """Return a file name that `source` holds, or raise InputError if it is not a plain name."""
    if not isinstance(name, str) or not name.strip(".") or "\0" in name:
        raise InputError(source, f"bad shard name {show(name)}")
    if any(mark in name for mark in "/\\:~"):
        raise InputError(source, f"shard name {show(name)} escapes the model's folder")
    if not PLAIN_NAME.fullmatch(name):
        what = f"bad shard name {show(name)}: letters, digits and ._- only, 255 at most"
        raise InputError(source, what)
    return name


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file in a model's folder. Raises InputError if a link leads away."""
    path = folder / name
    if not path.is_symlink():
        return path
    try:
        home, target = folder.resolve(strict=True), path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        # pathlib reports a loop of links as RuntimeError before Python 3.13.
        raise InputError(path, "symbolic link leads nowhere or in a circle") from error
    if not target.is_relative_to(home) and target.parent != _blobs(home):
        away = f"to {show(str(target), 60)}"
        raise InputError(path, "symbolic link leads out of the model's folder", away)
    return path


def exists_in(folder: Path, name: str) -> bool:
    """Tell whether a folder has an entry of this name, a broken link included."""
    return os.path.lexists(folder / name)


def foreign_link(path: Path) -> bool:
    """Tell whether a file has another name somewhere and belongs to another user."""
    status = path.stat()
    return status.st_nlink > 1 and status.st_uid != os.geteuid()


def _blobs(home: Path) -> Path | None:
    """Return the blob folder if this is `<hub>/models--org--name/snapshots/<revision>`."""
    if home.parent.name != "snapshots" or not home.parent.parent.name.startswith("models--"):
        return None
    return home.parent.parent / "blobs"
