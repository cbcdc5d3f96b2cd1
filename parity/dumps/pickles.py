"""Telling a pickle by its name and its first bytes, so that none is ever opened as a dump."""

from pathlib import Path

from lockstep.reference.checkpoint.files import open_file, read_bytes, stamp

SUFFIXES = (".pt", ".pth", ".pkl", ".pickle")
LIKELY = (".bin", ".ckpt")  # a pickle if they begin as torch writes one
BEGINNINGS = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")
PICKLED = (
    "a pickle is never read, since it may run anything: write the tensors with "
    "safetensors.torch.save_file or numpy.savez"
)


def is_pickle(path: Path) -> bool:
    """Say whether a path is a file that torch or pickle wrote; a folder of any name is none."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES + LIKELY or not path.is_file():
        return False
    return suffix in SUFFIXES or beginning(path) in BEGINNINGS


def beginning(path: Path) -> bytes:
    with open_file(path) as descriptor:
        return read_bytes(descriptor, 0, min(stamp(descriptor).size, 4), path)
