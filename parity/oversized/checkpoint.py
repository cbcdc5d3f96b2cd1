"""A Qwen3 checkpoint of random packed bits, in any size, written without ever being held whole."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.parity.writers.safetensors_stream import Entry, header, nbytes
from lockstep.reference.checkpoint.architectures import qwen3
from lockstep.reference.checkpoint.config_fields import Fields

BITS, GROUP = 4, 64
PIECE = 1 << 24  # bytes made at a time
# The shape of Qwen3 8B.
LARGE: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QUANTIZATION = {"bits": BITS, "group_size": GROUP, "mode": "affine"}
Entries = dict[str, Entry]


def write_checkpoint(folder: Path, keys: dict[str, Any], progress: Callable[[str], None]) -> None:
    """Write config.json, an index, and a file of weights a layer. The same keys, the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(keys | {"quantization": QUANTIZATION})
    (folder / "config.json").write_text(config, encoding="utf-8")
    weight_map = {}
    for shard, entries in shards(keys):
        with (folder / shard).open("wb") as file:
            file.write(header(entries, None))
            for name, (tag, shape) in entries.items():
                write_tensor(file, name, tag, shape)
        weight_map |= dict.fromkeys(entries, shard)
        progress(shard)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def shards(keys: dict[str, Any]) -> Iterator[tuple[str, Entries]]:
    """Yield the name of each file and its tensors: name -> type and shape."""
    config = qwen3.parse(Fields(keys, Path("config.json")), (), [])
    files: dict[str, Entries] = {}
    for name, shape in qwen3.tensors(config).items():
        part = name.split(".")[2] if ".layers." in name else name.removesuffix(".weight")
        files.setdefault(f"model-{part}.safetensors", {}).update(stored(name, shape))
    yield from files.items()


def stored(name: str, shape: tuple[int, ...]) -> Entries:
    """Return how one tensor lies in the file: a matrix is packed, a gain is not."""
    if len(shape) == 1:
        return {name: ("BF16", shape)}
    module, (rows, columns) = name.removesuffix(".weight"), shape
    steps = ("BF16", (rows, columns // GROUP))
    return {
        name: ("U32", (rows, columns * BITS // 32)),
        f"{module}.scales": steps,
        f"{module}.biases": steps,
    }


def size(keys: dict[str, Any]) -> int:
    """Return the bytes of all weights."""
    return sum(nbytes(*entry) for _, entries in shards(keys) for entry in entries.values())


def write_tensor(file: BinaryIO, name: str, tag: str, shape: tuple[int, ...]) -> None:
    """Write random codes; steps that make a product as large as its input; gains around 1.

    The offset of a group is -7.5 of its steps, so that weights have a mean of zero.
    """
    module = name.rpartition(".")[0]
    rng = np.random.default_rng(zlib.crc32(module.encode()))
    total = nbytes(tag, shape)
    if tag == "U32":
        for start in range(0, total, PIECE):
            file.write(rng.bytes(min(PIECE, total - start)))
        return
    noise = rng.random(shape, dtype=np.float32)
    if len(shape) == 1:
        values = 0.8 + 0.4 * noise
    else:  # the codes 0 to 15 deviate by 4.6
        values = (0.5 + noise) / np.float32(4.6 * (shape[1] * GROUP) ** 0.5)
        values *= -7.5 if name.endswith(".biases") else 1
    file.write((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())  # as bfloat16
