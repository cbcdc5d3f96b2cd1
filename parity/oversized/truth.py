"""The same forward pass a second time, in plain float64: it shares no line with the oracle.

Nor with the reader of checkpoints. Matrices are unpacked some rows at a time, straight from the
file. Read it beside the equations of docs/models/qwen3.md.
"""

import json
import struct
from pathlib import Path

import numpy as np

ROWS = 2048  # of a matrix at a time


class Plain:
    """The tensors of a folder, by offsets into its files."""

    def __init__(self, folder: Path):
        self.keys = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.places: dict[str, tuple[Path, int, tuple[int, ...]]] = {}
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            for name, entry in header.items():
                start = 8 + length + entry["data_offsets"][0]
                self.places[name] = path, start, tuple(entry["shape"])

    def raw(self, name: str, dtype: str, rows: slice) -> np.ndarray:
        """Return rows of a tensor as whole numbers, cut at the last one."""
        path, start, shape = self.places[name]
        width = shape[1] if len(shape) == 2 else 1
        stop = min(rows.stop, shape[0])
        offset = start + rows.start * width * np.dtype(dtype).itemsize
        found = np.fromfile(path, dtype, (stop - rows.start) * width, offset=offset)
        return found.reshape(stop - rows.start, width)

    def half(self, name: str, rows: slice) -> np.ndarray:
        bits = self.raw(name, "<u2", rows).astype("<u4") << 16
        return bits.view("<f4").astype(np.float64)

    def gain(self, name: str) -> np.ndarray:
        return self.half(f"{name}.weight", slice(0, 1 << 40))[:, 0]

    def matrix(self, name: str, rows: slice) -> np.ndarray:
        """Unpack rows of a matrix: the low half of a byte comes first."""
        octets = self.raw(f"{name}.weight", "<u4", rows).view(np.uint8)
        codes = np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(octets), -1, 64)
        steps, offsets = (self.half(f"{name}.{part}", rows) for part in ("scales", "biases"))
        return (codes * steps[..., None] + offsets[..., None]).reshape(len(octets), -1)

    def times(self, x: np.ndarray, name: str) -> np.ndarray:
        total = self.places[f"{name}.weight"][2][0]
        spans = [slice(start, start + ROWS) for start in range(0, total, ROWS)]
        return np.concatenate([x @ self.matrix(name, span).T for span in spans], axis=-1)


def last_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    """Return the logits of the last of some tokens, (V,)."""
    plain = Plain(folder)
    x = np.concatenate([plain.matrix("model.embed_tokens", slice(t, t + 1)) for t in tokens])
    for layer in range(plain.keys["num_hidden_layers"]):
        x = block(plain, x, f"model.layers.{layer}")
    return plain.times(norm(plain, x[-1:], "model.norm"), "lm_head")[0]


def block(plain: Plain, x: np.ndarray, path: str) -> np.ndarray:
    seen = norm(plain, x, f"{path}.input_layernorm")
    x = x + plain.times(attend(plain, seen, f"{path}.self_attn"), f"{path}.self_attn.o_proj")
    seen = norm(plain, x, f"{path}.post_attention_layernorm")
    gate, up = (plain.times(seen, f"{path}.mlp.{name}_proj") for name in ("gate", "up"))
    return x + plain.times(gate / (1 + np.exp(-gate)) * up, f"{path}.mlp.down_proj")


def attend(plain: Plain, x: np.ndarray, path: str) -> np.ndarray:
    width = plain.keys["head_dim"]
    q, k, v = (plain.times(x, f"{path}.{name}_proj") for name in "qkv")
    q, k, v = (part.reshape(len(x), -1, width).swapaxes(0, 1) for part in (q, k, v))
    q = turned(plain, norm(plain, q, f"{path}.q_norm"))
    k = turned(plain, norm(plain, k, f"{path}.k_norm"))
    shared = len(q) // len(k)
    heads = []
    for head, query in enumerate(q):
        scores = query @ k[head // shared].T / width**0.5
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[head // shared])
    return np.concatenate(heads, axis=-1)


def turned(plain: Plain, x: np.ndarray) -> np.ndarray:
    """Turn each pair (i, i + D/2) as a complex number."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * plain.keys["rope_theta"] ** -(np.arange(half) / half)
    moved = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([moved.real, moved.imag], axis=-1)


def norm(plain: Plain, x: np.ndarray, name: str) -> np.ndarray:
    mean = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + plain.keys["rms_norm_eps"]) * plain.gain(name)
