"""A worker for `lockstep conformance --exec`: copy it, and put your own operations in.

It needs numpy and nothing of Lockstep. A message is 8 bytes of length, little-endian, then a
safetensors file of that many bytes: 8 bytes of header length, a JSON header, the tensors' bytes.
"""

import json
import sys

import numpy as np

TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "U32": "u4", "U8": "u1", "BOOL": "?"}
TAGS = {np.dtype(code): tag for tag, code in TYPES.items()}


def silu(x):
    return x / (1 + np.exp(-x))


def swiglu(gate, up):
    return silu(gate) * up


def rms_norm(x, gain, *, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * gain


def linear(x, weight, bias):
    out = x @ weight.T
    return out if bias is None else out + bias


def rope(x, positions, frequencies, *, factor):
    angle = positions[:, None, :, None] * frequencies[..., None, None, :]
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    first, second = np.split(x, 2, axis=-1)
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def softmax(scores, mask, *, masked_row):
    if not scores.size:
        return scores
    seen = np.where(mask, scores, -np.inf)
    powers = np.where(mask, np.exp(seen - seen.max(axis=-1, keepdims=True)), 0)
    weights = powers / powers.sum(axis=-1, keepdims=True)
    policy = {"uniform": 1 / scores.shape[-1], "zero": 0.0, "nan": np.nan}[masked_row]
    blind = ~np.broadcast_to(mask, scores.shape).any(axis=-1, keepdims=True)
    return np.where(blind, policy, weights).astype(scores.dtype)


# Each argument is a tensor under its name, or an option of that name.
OPERATIONS = {
    "silu": silu, "swiglu": swiglu, "rms_norm": rms_norm, "linear": linear, "rope": rope,
    "softmax": softmax,
}  # fmt: skip


def read(stream):
    """Return the tensors and the metadata of a message, or None where there is no more."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    blob = stream.read(int.from_bytes(length, "little"))
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    about, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        first, last = (start + offset for offset in entry["data_offsets"])
        kind = TYPES.get(entry["dtype"])  # numpy has no bfloat16
        tensors[name] = kind and np.frombuffer(blob[first:last], "<" + kind).reshape(entry["shape"])
    return tensors, about


def write(stream, kind, number, tensors=None, **more):
    about = {"format": "lockstep-conformance", "version": "1", "kind": kind, "id": number, **more}
    header, bodies, start = {"__metadata__": about}, [], 0
    for name, array in (tensors or {}).items():
        body = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": TAGS[array.dtype], "shape": list(array.shape),
                        "data_offsets": [start, start + len(body)]}  # fmt: skip
        bodies.append(body)
        start += len(body)
    head = json.dumps(header).encode()
    blob = len(head).to_bytes(8, "little") + head + b"".join(bodies)
    stream.write(len(blob).to_bytes(8, "little") + blob)
    stream.flush()


def answer(stream, tensors, about):
    number, operation = about["id"], OPERATIONS.get(about["op"])
    options = json.loads(about["options"])
    packed = any("." in name for name in tensors)  # a matrix in parts: this worker has none
    if operation is None or packed or any(array is None for array in tensors.values()):
        return write(stream, "not implemented", number)
    try:
        out = operation(**tensors, **options)
    except Exception as error:
        return write(stream, "error", number, message=f"{type(error).__name__}: {error}")
    return write(stream, "result", number, {"out": out})


def main():
    np.seterr(all="ignore")
    into, out = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints must not get among the answers
    while (message := read(into)) is not None:
        tensors, about = message
        if about["kind"] == "hello":
            write(out, "hello", about["id"])
        else:
            answer(out, tensors, about)


if __name__ == "__main__":
    main()
