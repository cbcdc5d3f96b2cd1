"""Telling what a file is that is not what it should be, so that the error can say so."""

from __future__ import annotations

HEAD_BYTES = 64
MARKS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git-LFS pointer (fetch the file with `git lfs pull`)"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<?xml", "an XML page"),
    (b"PK\x03\x04", "a ZIP archive (a PyTorch pickle or .npz)"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b\x08", "a gzip archive"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"{", "JSON text"),
)


def looks_like(head: bytes, *, shortest: int) -> str | None:
    """Return what a file's first bytes say it is, or None.

    Marks of fewer than `shortest` bytes are left out: a header length can begin with them.
    """
    start = head[:HEAD_BYTES].lstrip(b" \t\r\n").lower()
    for mark, name in MARKS:
        if len(mark) >= shortest and (head.startswith(mark) or start.startswith(mark)):
            return name
    return None
