"""A folder's model as a GGUF file, for an engine that reads nothing else.

Dense weights keep their type, and no number is rounded but the divisors of Llama 3's frequencies,
to float32. MLX's packed weights have no type there: they are unpacked, and packed again in the
type of GGUF with as many bits or more, which is another model. It says which it is.
"""

# The gguf package is an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

import math
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.bench.gguf_types import is_exact, nbytes, said, types_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.resolve import is_gguf
from lockstep.reference.ops import dequantize

ARCHITECTURES = {
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "qwen3_moe": "QWEN3MOE",
    "gpt2": "GPT2",
}
# Whose queries and keys have their rows in another order: see reference/checkpoint/gguf/rows.py.
MOVED = ("llama", "mistral")
QUERIES_OR_KEYS = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
SCALINGS = ("default", "linear", "yarn", "llama3")
DIVISORS = "rope_freqs.weight"
STORED = "as stored"


class Inexact(ValueError):
    """A model that a GGUF file cannot hold, or llama.cpp not run, as it is. It says why."""


@contextmanager
def as_gguf(
    path: Path, form: str | None = None, *, ignore_config: Collection[str]
) -> Iterator[tuple[Path, str]]:
    """Give a GGUF file with the model of a path, and what it is: itself, or a copy of a folder.

    Matrices of a copy have the type `form`, or else that of the folder. It is deleted afterwards.
    Raises: Inexact if there is no such copy; OSError if there is no room for it.
    """
    if is_gguf(path):
        yield path, STORED
        return
    checkpoint = open_checkpoint(path, ignore_config=ignore_config)
    check(checkpoint)
    types = types_of(checkpoint, form)
    size = sum(nbytes(checkpoint.stored(name).shape, kind) for name, kind in types.items())
    with room_for(size) as folder:
        copy = folder / "model.gguf"
        write(checkpoint, copy, types)
        yield copy, said(types.values(), exact=is_exact(checkpoint, types))


@contextmanager
def room_for(size: int) -> Iterator[Path]:
    """Give a temporary folder for a copy. Raises: OSError if the disk has no room for it."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        free = shutil.disk_usage(folder).free
        if size > free:
            raise OSError(f"its copy takes {size} bytes, and {free} are free in {folder}")
        yield Path(folder)


def check(checkpoint: Checkpoint) -> None:
    """Raises: Inexact if a GGUF file cannot say what the checkpoint says."""
    config, kind = checkpoint.config, checkpoint.architecture
    if kind not in ARCHITECTURES:
        raise Inexact(f"{kind} is not converted")
    if getattr(config, "sliding_window", None) is not None:
        raise Inexact("llama.cpp has no sliding window for it")
    if kind == "gpt2":
        check_gpt2(checkpoint)
    elif (scaling := config.rope_scaling).rope_type not in SCALINGS or not usual(scaling):
        raise Inexact(f"its rope scaling, {scaling.rope_type}, has no form there")
    elif scaling.rope_type == "llama3" and kind not in MOVED:
        raise Inexact("llama.cpp divides the frequencies of Llama alone")
    if kind == "qwen3_moe" and not config.norm_topk_prob:
        raise Inexact("llama.cpp always norms the weights of experts")
    if kind == "qwen3_moe" and not all(map(config.is_sparse, range(config.num_hidden_layers))):
        raise Inexact("llama.cpp has no dense layers among sparse ones")


def check_gpt2(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    if config.activation_function == "gelu":
        raise Inexact("llama.cpp takes GELU's tanh form for GPT-2")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
        raise Inexact("llama.cpp knows one scale of GPT-2's scores")


def usual(scaling: Any) -> bool:
    """Tell whether YaRN's finer settings are those that an engine takes by itself."""
    if scaling.rope_type != "yarn":
        return True
    bounds = (scaling.beta_fast, scaling.beta_slow, scaling.truncate)
    factor = 0.1 * math.log(scaling.factor) + 1
    return bounds == (32.0, 1.0, True) and math.isclose(scaling.attention_factor, factor)


def write(checkpoint: Checkpoint, target: Path, types: dict[str, str]) -> None:
    """Write the file, one tensor in memory at a time, each in its type."""
    import gguf

    kind = gguf.MODEL_ARCH[ARCHITECTURES[checkpoint.architecture]]
    names = gguf.get_tensor_name_map(kind, checkpoint.config.num_hidden_layers)
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[kind])
    add_config(writer, checkpoint)
    extra = divisors(checkpoint.config)
    if extra is not None:
        announce(writer, DIVISORS, extra.shape, "F32")
    for name in checkpoint.names:
        stem, _, suffix = name.rpartition(".")
        shape = checkpoint.stored(name).shape
        announce(writer, f"{names.get_name(stem)}.{suffix}", shape, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if extra is not None:
        writer.write_tensor_data(extra)
    for name in checkpoint.names:
        kind = gguf.GGMLQuantizationType[types[name]]
        writer.write_tensor_data(gguf.quants.quantize(in_order(name, checkpoint), kind))
    writer.close()


def announce(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    """Say what comes. The shape of what is no float counts bytes."""
    import gguf

    size, of = nbytes(shape, kind), gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size)
        return
    octets = (*shape[:-1], size // math.prod(shape[:-1]))
    writer.add_tensor_info(name, octets, np.dtype(np.uint8), size, raw_dtype=of)


def in_order(name: str, checkpoint: Checkpoint) -> np.ndarray:
    """Return a tensor in float32, with its rows as llama.cpp wants them."""
    values = in_float32(checkpoint.tensor(name))
    if checkpoint.architecture not in MOVED or not name.endswith(QUERIES_OR_KEYS):
        return values
    pairs = values.reshape(-1, 2, checkpoint.config.head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def add_config(writer: Any, checkpoint: Checkpoint) -> None:
    """Write the metadata. There is no tokenizer: the benchmark feeds ids."""
    config = checkpoint.config
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if checkpoint.architecture == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    add_rope(writer, config)
    if checkpoint.architecture == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def add_rope(writer: Any, config: Any) -> None:
    import gguf

    scaling = config.rope_scaling
    writer.add_rope_freq_base(config.rope_theta)
    if scaling.rope_type in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.rope_type))
        writer.add_rope_scaling_factor(scaling.factor)
    if scaling.rope_type == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)


def divisors(config: Any) -> np.ndarray | None:
    """Return what Llama 3 divides each frequency by, None if nothing is divided."""
    scaling = getattr(config, "rope_scaling", None)
    if scaling is None or scaling.rope_type != "llama3":
        return None
    from lockstep.reference import ops

    rope = {"theta": config.rope_theta, "dims": config.head_dim}
    stretched = scaling.frequencies(ops, lengths=None, **rope)
    return np.asarray(ops.rope_frequencies(**rope) / stretched, np.float32)


def in_float32(tensor: Any) -> np.ndarray:
    """Return the numbers of a stored tensor; of packed ones what they stand for."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor, np.float32)
    if len(tensor.shape) > 2:
        return np.stack([in_float32(tensor[index]) for index in range(tensor.shape[0])])
    return dequantize(tensor, rows=slice(None), dtype=np.dtype(np.float32))
