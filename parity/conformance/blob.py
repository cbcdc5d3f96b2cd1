"""A safetensors file in memory: what the pipe protocol sends either way."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.dtypes import DTYPES, numpy_dtype
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors_header import parse_header

TAGS = {name: tag for tag, (_, name) in DTYPES.items()}
LENGTH_BYTES = 8
HEADER_LIMIT = 1 << 20


def encode(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    bodies, start = [], 0
    for name, array in tensors.items():
        body = np.ascontiguousarray(array).tobytes()
        place = [start, start := start + len(body)]
        tag = TAGS[array.dtype.name]
        header[name] = {"dtype": tag, "shape": list(array.shape), "data_offsets": place}
        bodies.append(body)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *bodies])


def decode(blob: bytes, source: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of such bytes, and the text beside them.

    Raises: InputError that begins with `source` if they are no sound safetensors file.
    """
    path = Path(source)
    length = int.from_bytes(blob[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if len(blob) < LENGTH_BYTES or not 0 < length <= min(len(blob) - LENGTH_BYTES, HEADER_LIMIT):
        raise InputError(source, f"{len(blob)} bytes that are no safetensors file")
    head = parse_header(blob[LENGTH_BYTES:start], path, start, len(blob), HEADER_LIMIT)
    tensors = {
        name: np.frombuffer(blob[entry.start : entry.stop], numpy_dtype(entry.dtype)).reshape(
            entry.shape
        )
        for name, entry in head.entries.items()
    }
    return tensors, head.metadata
