"""A folder for what a benchmark writes, which is gone again when it is done."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError


@contextmanager
def room(folder: str | None) -> Iterator[Path]:
    """Make a folder in another, or in that of temporary files, and remove it in the end.

    Raises: InputError if none can be made there.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="lockstep-", dir=folder)
    except OSError as error:
        what = f"no folder can be made there: {error.strerror}"
        raise InputError(folder or "temporary files", what) from None
    with made as path:
        yield Path(path)
