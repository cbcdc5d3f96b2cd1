"""A folder's model as a GGUF file in float32, for an engine that reads nothing else.

Only what such a file holds exactly is written: no number is rounded but the divisors of Llama 3's
frequencies, to float32. The rest is refused.
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

from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.resolve import is_gguf

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


class Inexact(ValueError):
    """A model that a GGUF file cannot hold, or llama.cpp not run, as it is. It says why."""


@contextmanager
def as_gguf(path: Path, *, ignore_config: Collection[str]) -> Iterator[Path]:
    """Give a GGUF file with the model of a path: itself, or a copy that is deleted afterwards.

    Raises: Inexact if there is no such copy; OSError if there is no room for it.
    """
    if is_gguf(path):
        yield path
        return
    checkpoint = open_checkpoint(path, ignore_config=ignore_config)
    check(checkpoint)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        copy = Path(folder) / "model.gguf"
        size = 4 * sum(math.prod(checkpoint.stored(name).shape) for name in checkpoint.names)
        free = shutil.disk_usage(folder).free
        if size > free:
            raise OSError(f"its copy takes {size} bytes, and {free} are free in {folder}")
        write(checkpoint, copy)
        yield copy


def check(checkpoint: Checkpoint) -> None:
    """Raises: Inexact if a GGUF file cannot say what the checkpoint says."""
    config, kind = checkpoint.config, checkpoint.architecture
    if kind not in ARCHITECTURES:
        raise Inexact(f"{kind} is not converted")
    if any(checkpoint.stored(name).packed for name in checkpoint.names):
        raise Inexact("MLX's packed weights have no type there")
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


def write(checkpoint: Checkpoint, target: Path) -> None:
    """Write the file, one tensor in memory at a time."""
    import gguf

    kind = gguf.MODEL_ARCH[ARCHITECTURES[checkpoint.architecture]]
    names = gguf.get_tensor_name_map(kind, checkpoint.config.num_hidden_layers)
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[kind])
    add_config(writer, checkpoint)
    extra = divisors(checkpoint.config)
    if extra is not None:
        announce(writer, DIVISORS, extra.shape)
    for name in checkpoint.names:
        stem, _, suffix = name.rpartition(".")
        announce(writer, f"{names.get_name(stem)}.{suffix}", checkpoint.stored(name).shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if extra is not None:
        writer.write_tensor_data(extra)
    for name in checkpoint.names:
        writer.write_tensor_data(in_order(name, checkpoint))
    writer.close()


def announce(writer: Any, name: str, shape: tuple[int, ...]) -> None:
    float32 = np.dtype(np.float32)
    writer.add_tensor_info(name, shape, float32, float32.itemsize * math.prod(shape))


def in_order(name: str, checkpoint: Checkpoint) -> np.ndarray:
    """Return a tensor in float32, with its rows as llama.cpp wants them."""
    values = np.ascontiguousarray(checkpoint.tensor(name), np.float32)
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
