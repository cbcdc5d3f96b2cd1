"""What is said over the pipe: docs/parity/conformance.md specifies it.

A message is 8 bytes of length, little-endian, and that many bytes of a safetensors file.
"""

import json
from typing import Any

import numpy as np

from lockstep.parity.conformance.blob import decode, encode
from lockstep.parity.conformance.case import Case
from lockstep.parity.conformance.compare import for_reference
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

FORMAT, VERSION = "lockstep-conformance", "1"


def hello() -> bytes:
    return encode({}, about("hello", "0"))


def request(case: Case, number: int) -> bytes:
    """Return one call: arrays as tensors, everything else in the options."""
    tensors: dict[str, np.ndarray] = {}
    options: dict[str, Any] = {}
    for name, value in for_reference(case.values).items():
        put(name, value, tensors, options)
    metadata = about("call", str(number)) | {
        "op": case.op, "dtype": case.dtype.name, "options": json.dumps(options),
    }  # fmt: skip
    return encode(tensors, metadata)


def about(kind: str, number: str) -> dict[str, str]:
    return {"format": FORMAT, "version": VERSION, "kind": kind, "id": number}


def put(name: str, value: Any, tensors: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    """Write one argument; a packed matrix is its parts, with its form among the options."""
    if isinstance(value, QuantizedTensor):
        tensors |= {f"{name}.{part}": getattr(value, part) for part in
                    ("packed", "scales", "biases")}  # fmt: skip
        options[name] = {"form": "affine", "bits": value.bits, "group_size": value.group_size}
    elif isinstance(value, MinifloatTensor):
        tensors |= {f"{name}.packed": value.packed, f"{name}.scales": value.scales}
        options[name] = {"form": value.mode}
    elif isinstance(value, BlockTensor):
        tensors[f"{name}.blocks"] = value.blocks
        options[name] = {"form": value.format}
    elif isinstance(value, np.ndarray):
        tensors[name] = value
    elif isinstance(value, np.dtype):
        options[name] = value.name
    else:  # a slice is always that of all rows
        options[name] = None if isinstance(value, slice) else value


def answer(blob: bytes, number: str) -> tuple[str, dict[str, np.ndarray], dict[str, str]]:
    """Return the kind of an answer, its tensors, and its text.

    Raises: ValueError, InputError among them, in one line, for what is no answer to `number`.
    """
    tensors, metadata = decode(blob, "the answer")
    found = metadata.get("format"), metadata.get("version")
    if found != (FORMAT, VERSION):
        raise ValueError(f"format and version {found}, but should be {(FORMAT, VERSION)}")
    if metadata.get("id") != number:
        raise ValueError(f"an answer to call {metadata.get('id')!r}, but call {number} was made")
    return metadata.get("kind", ""), tensors, metadata
