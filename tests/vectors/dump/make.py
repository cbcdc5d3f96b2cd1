"""Make the conformance vectors of the dump format anew: python -m tests.vectors.dump.make

Nothing of Lockstep is imported. What the safetensors package can write, it writes; the rest is put
together from bytes by hand. index.json says what each file holds, or with which line it is refused.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from safetensors import TensorSpec, serialize

from tests.vectors.dump.invalid import INVALID
from tests.vectors.dump.raw import Tensor
from tests.vectors.dump.valid import VALID

FOLDER = Path(__file__).parent
PACKAGE = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
           "I32": "int32", "I16": "int16", "U16": "uint16", "I8": "int8", "U8": "uint8",
           "BOOL": "bool", "U32": "uint32", "U64": "uint64"}  # fmt: skip


def by_package(tensors: list[Tensor], about: dict[str, str] | None) -> bytes:
    """Let the safetensors package write a file."""
    kept = [ctypes.create_string_buffer(one.data, len(one.data)) for one in tensors]
    specs = {
        one.name: TensorSpec(
            dtype=PACKAGE[one.dtype],
            shape=one.shape,
            data_ptr=ctypes.addressof(buffer),
            data_len=len(one.data),
        )
        for one, buffer in zip(tensors, kept, strict=True)
    }
    return serialize(specs, about)


def files() -> dict[str, bytes]:
    """Return every vector by its path in this folder, and the index."""
    found: dict[str, bytes] = {}
    index: dict[str, Any] = {"valid": [], "invalid": []}
    for name, case in VALID.items():
        path = f"valid/{name}.safetensors"
        made = by_package(case.tensors, case.about) if case.raw is None else case.raw
        found[path] = made
        entry = {
            "file": path,
            "what": case.what,
            "written_by": "package" if case.raw is None else "hand",
        }
        entry |= {"kind": "trace" if is_trace(case.about) else "bare dump"}
        entry |= {"metadata": case.about or {}, "tensors": [described(one) for one in case.tensors]}
        index["valid"].append(entry)
    for name, case in INVALID.items():
        path = f"invalid/{name}.safetensors"
        found[path] = case.data
        theirs = "refuses" if case.package_refuses else "reads"
        entry = {"file": path, "what": case.what, "says": case.says, "safetensors_package": theirs}
        index["invalid"].append(entry)
    found["index.json"] = laid_out(index).encode()
    return found


def is_trace(about: dict[str, str] | None) -> bool:
    return (about or {}).get("format") == "lockstep-trace"


def described(one: Tensor) -> dict[str, Any]:
    return {
        "name": one.name,
        "dtype": one.dtype,
        "shape": one.shape,
        "bytes": one.data.hex(),
        "values": one.values,
    }


def laid_out(index: dict[str, list[dict[str, Any]]]) -> str:
    """Return JSON with a line for each file and each tensor, so that a change can be read."""
    parts = []
    for kind, entries in index.items():
        lines = []
        for entry in entries:
            tensors = [json.dumps(one) for one in entry.get("tensors", [])]
            text = json.dumps({key: value for key, value in entry.items() if key != "tensors"})
            inside = ',\n  "tensors": [\n   ' + ",\n   ".join(tensors) + "]}"
            lines.append(text[:-1] + inside if tensors else text)
        parts.append(f' "{kind}": [\n  ' + ",\n  ".join(lines) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    for path, data in files().items():
        target = FOLDER / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    main()
