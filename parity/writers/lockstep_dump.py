"""Write a Lockstep trace from plain Python: copy this file into your port. No dependencies.

    with TraceWriter("port.safetensors", dtype="float32", tokens=[1, 2, 3]) as dump:
        dump.add("model.layers.0.mlp", values, shape=(1, 3, 64))    # a flat list of numbers, or
        dump.add("logits", array, shape=array.shape, dtype="F16")   # anything with a buffer
    # Only now does the file appear; after an error nothing does.

`dtype` of the writer is what your port computes in; `dtype` of a tensor is what its bytes are.
Tensors are written as they come, so memory stays bounded. The format is safetensors: 8 bytes of
header length, a JSON header, then the bytes of all tensors without gaps.
"""

import json
import os
import sys
from array import array
from contextlib import suppress
from pathlib import Path

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "U16": 2, "I8": 1,
         "U8": 1, "BOOL": 1}  # fmt: skip
CODES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "I16": "h", "U16": "H", "I8": "b",
         "U8": "B"}  # fmt: skip
CHUNK = 1 << 20


class TraceWriter:
    """Collects tensors in a temporary file beside `path`; `close` puts the whole in place."""

    def __init__(self, path, /, *, model="", backend="", dtype="float32", tokens=(), **extra):
        self.path = Path(path)
        listed = json.dumps([int(token) for token in tokens])
        about = {"model": model, "backend": backend, "dtype": dtype, "tokens": listed, **extra}
        strings = {key: str(value) for key, value in about.items()}
        self.header: dict = {
            "__metadata__": {"format": "lockstep-trace", "version": "1", **strings}
        }
        self.size = self.start = 0  # where the tensors begin in the file of bodies
        unique = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.bodies = self.path.with_name(f".{self.path.name}.lockstep-{unique}.tmp")
        self.whole = self.bodies.with_suffix(".whole.tmp")
        self.body = self.bodies.open("xb")

    def say(self, **about):
        """Add to what is said of the whole what is known only later, such as decoded=[7, 5]."""
        for key, value in about.items():
            text = json.dumps(value) if isinstance(value, list) else str(value)
            self.header["__metadata__"][key] = text

    def add(self, name, values, *, shape, dtype="F32"):
        """Append one tensor: a flat list of numbers, or an object with a buffer, row by row.

        Raises ValueError if the name was used, or the bytes are not those of `shape` in `dtype`.
        """
        if dtype not in SIZES:
            raise ValueError(f"{name}: dtype {dtype!r}, but should be one of {', '.join(SIZES)}")
        if name in self.header:
            raise ValueError(f"tensor {name!r} was written already")
        data = self.bytes_of(values, dtype)
        expected = SIZES[dtype]
        for size in shape:
            expected *= size
        if len(data) != expected or min(shape, default=0) < 0:
            raise ValueError(f"{name}: {len(data)} bytes, but {shape} of {dtype} takes {expected}")
        place = [self.size, self.size + len(data)]
        self.body.write(data)
        self.header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        self.size += len(data)

    def bytes_of(self, values, dtype):
        if not isinstance(values, (list, tuple)):  # a buffer is taken to be little-endian
            view = memoryview(values)
            plain = view.format == "B" and view.ndim == 1 and view.c_contiguous
            return view if plain else view.tobytes()
        if dtype not in CODES:
            raise ValueError(f"a list cannot be written as {dtype}; give its bytes")
        numbers = array(CODES[dtype], values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tobytes()

    def close(self):
        """Put header and tensors together under the final name, or leave what was there."""
        try:
            self.body.close()
            header = json.dumps(self.header, ensure_ascii=True).encode()
            header += b" " * (-len(header) % 8)
            with self.whole.open("xb") as out, self.bodies.open("rb") as body:
                out.write(len(header).to_bytes(8, "little") + header)
                body.seek(self.start)
                while chunk := body.read(CHUNK):
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
            self.whole.replace(self.path)
        finally:
            self.discard()

    def discard(self):
        """Give up: remove what was collected so far. Safe to call twice."""
        with suppress(OSError):  # a full disk: what is buffered is not wanted any more
            self.body.close()
        self.bodies.unlink(missing_ok=True)
        self.whole.unlink(missing_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close() if kind is None else self.discard()
