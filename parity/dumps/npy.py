"""Read .npy files and .npz archives without unpickling anything or trusting a declared size."""

import ast
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.parts import Parts, held
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import (
    check_unchanged,
    open_file,
    read_bytes,
    read_into,
    read_whole,
    stamp,
)

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Contents = tuple[Shapes, Callable[[str], np.ndarray]]
MAGIC = b"\x93NUMPY"
HEADER = 1 << 16  # more than anybody writes before the data
LIMIT = 1 << 36  # bytes of an array in a file of its own, or stored in an archive as it is
UNPACKED = 1 << 32  # bytes of an array that an archive holds compressed
MEMBERS = 1 << 16
DTYPE = re.compile(r"[<>|=]?(?P<kind>[biufcV])[0-9]{1,2}")
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, KeyError)


@dataclass(frozen=True)
class Head:
    """What stands before the data of an array: its type and shape, and where the data begins."""

    shape: tuple[int, ...]
    dtype: np.dtype
    column_major: bool
    start: int


def open_folder(folder: Path) -> Contents:
    """Return the shapes of the .npy files of a folder and its folders, and how to read one.

    `step.1/logits.npy` holds `step.1/logits`.
    """
    found = sorted(folder.rglob("*.npy"))
    paths = {path.relative_to(folder).as_posix().removesuffix(".npy"): path for path in found}
    shapes = {name: head_of(read_head(path), path, name).shape for name, path in paths.items()}
    return shapes, lambda name: parsed(read_whole(paths[name], limit=LIMIT), paths[name], name)


def parts_of_file(path: Path, name: str) -> Parts:
    """Return an array to be read a part at a time; one in column-major order is read whole."""
    with open_file(path) as descriptor:
        before = stamp(descriptor)
        head = head_of(read_bytes(descriptor, 0, min(before.size, HEADER), path), path, name)
    size = head.dtype.itemsize
    check_length(head, before.size, path, name)
    if head.column_major:
        return held(parsed(read_whole(path, limit=LIMIT), path, name))

    def read(start: int, stop: int, room: np.ndarray | None) -> np.ndarray:
        length = (stop - start) * size
        buffer = np.empty(length, np.uint8) if room is None else room[:length]
        with open_file(path) as descriptor:
            check_unchanged(descriptor, path, before)
            read_into(descriptor, buffer.data, head.start + start * size, path)
            check_unchanged(descriptor, path, before)
        return buffer.view(head.dtype)

    return Parts(head.shape, head.dtype, read)


def open_npz(path: Path) -> Contents:
    """Return the shapes of the arrays of an archive, and how to read one by its name."""
    with opened(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if not len(members) == len(archive.infolist()) <= MEMBERS:
            what = f"two arrays of one name, or more than {MEMBERS}, which nobody can tell apart"
            raise InputError(path, what)
        for name, info in members.items():
            check_size(path, name, info)
        shapes = {name: shape_in(archive, info, path, name) for name, info in members.items()}
    return shapes, partial(read_member, path, members)


def shape_in(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str) -> Shape:
    """Return an array's shape; what was read of it is let go, since an archive may have many."""
    with archive.open(info) as member:
        return head_of(member.read(HEADER), path, name).shape


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever is wrong with it comes out as an InputError."""
    try:
        with (
            open_file(path) as descriptor,
            os.fdopen(os.dup(descriptor), "rb") as file,
            zipfile.ZipFile(file) as archive,
        ):
            yield archive
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(path, f"not a readable .npz archive: {show(str(error))}") from None


def check_size(path: Path, name: str, info: zipfile.ZipInfo) -> None:
    """Refuse an array that claims more than the archive holds, or than one may unpack to."""
    packed = info.compress_type != zipfile.ZIP_STORED
    limit = UNPACKED if packed else min(LIMIT, path.stat().st_size)
    if info.file_size > limit:
        what = f"array of {info.file_size} bytes is over the limit of {limit}"
        raise InputError(path, what, name)


def read_member(path: Path, members: Mapping[str, zipfile.ZipInfo], name: str) -> np.ndarray:
    with opened(path) as archive, archive.open(members[name].filename) as member:
        return parsed(member.read(members[name].file_size), path, name)


def read_head(path: Path) -> bytes:
    with open_file(path) as descriptor:
        return read_bytes(descriptor, 0, min(os.fstat(descriptor).st_size, HEADER), path)


def head_of(data: bytes, path: Path, name: str) -> Head:
    """Read type and shape from the beginning of an array's file, refusing what is no number.

    Two bytes of no type, as NumPy writes bfloat16, are taken for bfloat16.
    """
    wide = data[6:7] in (b"\x02", b"\x03")
    begin = 12 if wide else 10
    length = int.from_bytes(data[8:begin], "little")
    if data[:6] != MAGIC or data[6:7] not in (b"\x01", b"\x02", b"\x03"):
        raise InputError(path, "not a .npy array: it does not begin as one", name)
    if begin + length > min(len(data), HEADER):
        raise InputError(path, f"header of {length} bytes is over the file or the limit", name)
    try:
        header = ast.literal_eval(data[begin : begin + length].decode("latin-1").strip())
        descr, order, shape = (header[key] for key in ("descr", "fortran_order", "shape"))
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise InputError(path, "its header is not a dictionary of descr and shape", name) from None
    if type(order) is not bool or not is_shape(shape):
        raise InputError(path, f"shape={show(shape)}, but should be whole numbers", name)
    return Head(shape, number_type(descr, path, name), order, begin + length)


def is_shape(shape: object) -> bool:
    if not isinstance(shape, tuple) or len(shape) > 32:
        return False
    return all(type(size) is int and 0 <= size < 1 << 48 for size in shape)


def number_type(descr: object, path: Path, name: str) -> np.dtype:
    if descr in ("<V2", "|V2"):
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    found = DTYPE.fullmatch(descr) if isinstance(descr, str) else None
    try:
        if found and found["kind"] != "V":
            return np.dtype(found.group())
    except TypeError:
        pass
    what = f"elements of type {show(descr)}, but should be numbers; nothing is ever unpickled"
    raise InputError(path, what, name)


def parsed(data: bytes, path: Path, name: str) -> np.ndarray:
    """Return the array in a .npy file's bytes, after comparing the declared size with the real."""
    head = head_of(data[:HEADER], path, name)
    check_length(head, len(data), path, name)
    flat = np.frombuffer(data, head.dtype, offset=head.start)
    return flat.reshape(head.shape, order="F" if head.column_major else "C")


def check_length(head: Head, length: int, path: Path, name: str) -> None:
    """Raise InputError unless a file of so many bytes holds the data that its head declares."""
    rest, needed = length - head.start, math.prod(head.shape) * head.dtype.itemsize
    if rest != needed:
        takes = f"{show(head.shape)} of {head.dtype} takes {needed}"
        raise InputError(path, f"{rest} bytes of data, but {takes}", name)
