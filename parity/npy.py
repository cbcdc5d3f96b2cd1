"""Read .npy files and .npz archives without unpickling anything or trusting a declared size."""

import io
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import open_file, read_bytes, read_whole

Shapes = Mapping[str, tuple[int, ...]]
Contents = tuple[Shapes, Callable[[str], np.ndarray]]
HEADER = 1 << 16  # more than NumPy ever writes before the data
LIMIT = 1 << 36  # bytes of one array


def open_folder(folder: Path) -> Contents:
    """Return the shapes of the .npy files of a folder, and how to read one by its stem."""
    paths = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    heads = {name: read_head(path) for name, path in paths.items()}
    shapes = {name: shape_of(head, paths[name]) for name, head in heads.items()}
    return shapes, lambda name: parsed(read_whole(paths[name], limit=LIMIT), paths[name], name)


def open_npz(path: Path) -> Contents:
    """Return the shapes of the arrays of an archive, and how to read one by its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {Path(i.filename).stem if i.filename.endswith(".npy") else i.filename: i
                       for i in archive.infolist()}  # fmt: skip
            heads = {name: archive.open(info).read(HEADER) for name, info in members.items()}
    except FileNotFoundError:
        raise InputError(path, "no such file") from None
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise InputError(path, f"not a readable .npz archive: {error}") from None
    sizes = {name: info.file_size for name, info in members.items()}
    shapes = {name: shape_of(head, path, name) for name, head in heads.items()}
    return shapes, partial(read_member, path, {n: i.filename for n, i in members.items()}, sizes)


def read_member(
    path: Path, members: Mapping[str, str], sizes: Mapping[str, int], name: str
) -> np.ndarray:
    if sizes[name] > LIMIT:
        raise InputError(path, f"array of {sizes[name]} bytes is over the limit of {LIMIT}", name)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(members[name]) as member:
            return parsed(member.read(sizes[name]), path, name)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(path, f"not readable: {error}", name) from None


def read_head(path: Path) -> bytes:
    with open_file(path) as descriptor:
        length = min(os.fstat(descriptor).st_size, HEADER)
        return read_bytes(descriptor, 0, length, path)


def shape_of(head: bytes, path: Path, name: str = "") -> tuple[int, ...]:
    return header(io.BytesIO(head), path, name)[0]


def header(file: io.BytesIO, path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, order and dtype, refusing what would need pickle."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, column_major, dtype = read(file)
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise InputError(path, f"not a .npy array: {show(error)}", name) from None
    if dtype.hasobject:
        raise InputError(path, "holds Python objects, which are never unpickled", name)
    return shape, column_major, dtype


def parsed(data: bytes, path: Path, name: str) -> np.ndarray:
    """Return the array in a .npy file's bytes, after comparing the declared size with the real."""
    file = io.BytesIO(data)
    shape, column_major, dtype = header(file, path, name)
    rest, needed = len(data) - file.tell(), math.prod(shape) * dtype.itemsize
    if rest != needed:
        raise InputError(path, f"{rest} bytes of data, but {shape} of {dtype} takes {needed}", name)
    flat = np.frombuffer(data, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if column_major else "C")
