"""A folder that appears whole, or not at all."""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError


def check_new_folder(target: Path, inputs: Collection[Path]) -> Path:
    """Return the full path of a folder that may be made, or raise InputError.

    It must not exist or be empty, and lie in a folder that exists and in none of `inputs`.
    """
    try:
        if target.is_symlink():
            raise InputError(target, "is a link, but should be the name of a new folder")
        whole = target.resolve()
        if whole.is_dir():
            if any(whole.iterdir()):
                raise InputError(target, "is a folder that is not empty; it is left as it is")
        elif os.path.lexists(whole):
            raise InputError(target, "exists and is no folder; it is left as it is")
        if not whole.parent.is_dir():
            raise InputError(target, "cannot be made: the folder that it is to lie in is not there")
        for source in inputs:
            if whole.is_relative_to(source.resolve()):
                what = f"lies in the folder that is read, {source}; write elsewhere"
                raise InputError(target, what)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(target, f"cannot be made: {error}") from None
    return whole


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `target`, which takes that name if all goes well.

    After an error nothing is left. `target` may be there if it is still empty then.
    """
    part = target.with_name(f".lockstep-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        _make(part, target)
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _make(part: Path, target: Path) -> None:
    try:
        part.mkdir()
    except OSError as error:
        raise InputError(target, f"cannot be made: {error.strerror or error}") from None
