"""GGUF files byte by byte, sound or not, without the gguf package."""

import struct
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", U64: "Q", I64: "q"}
CODES |= {F64: "d", BOOL: "B"}
# Tensor type: weights and bytes of a block.
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2)}


def string(text: str | bytes, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def pair(key: str | bytes, kind: int, value: Any) -> bytes:
    """Return one key and its value; a value of bytes is written as it is."""
    return string(key) + struct.pack("<I", kind) + payload(kind, value)


def payload(kind: int, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return string(value) if kind == STRING else struct.pack(f"<{CODES[kind]}", value)


def array(key: str, kind: int, items: Any, length: int | None = None) -> bytes:
    data = items if isinstance(items, bytes) else b"".join(payload(kind, one) for one in items)
    count = len(items) if length is None else length
    return pair(key, ARRAY, struct.pack("<IQ", kind, count) + data)


def info(
    name: str | bytes, sizes: Any, kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    """Return one tensor of the list; `sizes` are those of the file, fastest axis first."""
    count = len(sizes) if rank is None else rank
    return (
        string(name)
        + struct.pack("<I", count)
        + struct.pack(f"<{len(sizes)}Q", *(size % 2**64 for size in sizes))
        + struct.pack("<IQ", kind % 2**32, offset % 2**64)
    )


def container(
    pairs: list[bytes],
    infos: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    tensors: int | None = None,
    count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a whole file. The data begin at a multiple of the alignment; the counts may lie."""
    head = b"GGUF" + struct.pack("<I", version)
    head += struct.pack("<Q", len(infos) if tensors is None else tensors)
    head += struct.pack("<Q", len(pairs) if count is None else count)
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def laid_out(
    tensors: dict[str, tuple[tuple[int, ...], int]], alignment: int = 32
) -> tuple[list[bytes], bytes]:
    """Return the list of tensors and data of zeros; shapes are NumPy's."""
    infos, offset = [], 0
    for name, (shape, kind) in tensors.items():
        weights, size = BLOCK[kind]
        nbytes = size
        for one in shape:
            nbytes *= one
        infos.append(info(name, shape[::-1], kind, offset))
        offset += -(-(nbytes // weights) // alignment) * alignment
    return infos, bytes(offset)


HYPERPARAMETERS = {
    "qwen3.block_count": (U32, 1),
    "qwen3.context_length": (U32, 64),
    "qwen3.embedding_length": (U32, 32),
    "qwen3.feed_forward_length": (U32, 64),
    "qwen3.attention.head_count": (U32, 4),
    "qwen3.attention.head_count_kv": (U32, 2),
    "qwen3.attention.key_length": (U32, 16),
    "qwen3.attention.value_length": (U32, 16),
    "qwen3.attention.layer_norm_rms_epsilon": (F32, 1e-6),
    "qwen3.rope.freq_base": (F32, 1e6),
}
TENSORS = {
    "token_embd.weight": ((10, 32), 8),
    "blk.0.attn_norm.weight": ((32,), 0),
    "blk.0.attn_q.weight": ((64, 32), 8),
    "blk.0.attn_k.weight": ((32, 32), 2),
    "blk.0.attn_v.weight": ((32, 32), 30),
    "blk.0.attn_output.weight": ((32, 64), 1),
    "blk.0.attn_q_norm.weight": ((16,), 0),
    "blk.0.attn_k_norm.weight": ((16,), 0),
    "blk.0.ffn_norm.weight": ((32,), 0),
    "blk.0.ffn_gate.weight": ((64, 32), 0),
    "blk.0.ffn_up.weight": ((64, 32), 0),
    "blk.0.ffn_down.weight": ((32, 64), 0),
    "output_norm.weight": ((32,), 0),
}


def model(
    changes: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    extra: list[bytes] | None = None,
) -> bytes:
    """Return a small Qwen3 of zeros. A change of None leaves that key or that tensor out."""
    keys = HYPERPARAMETERS | (changes or {})
    pairs = [pair("general.architecture", STRING, "qwen3")]
    pairs += [pair(key, *value) for key, value in keys.items() if value is not None]
    kept = {name: one for name, one in (TENSORS | (tensors or {})).items() if one is not None}
    return container(pairs + (extra or []), *laid_out(kept))
