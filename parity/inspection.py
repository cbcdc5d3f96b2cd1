"""What can be known of a checkpoint without reading a weight."""

import re
from collections.abc import Collection
from dataclasses import asdict
from math import prod
from typing import Any

from lockstep.reference.checkpoint.architectures import Config
from lockstep.reference.checkpoint.checkpoint import Checkpoint, StoredFormat
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.ops.linear import TILE

LAYER = re.compile(r"\.[0-9]+\.")  # tensors of a layer have its number in their name
PROMPT = 128  # tokens of the run whose memory is estimated, or all that the context has
FLOAT32 = 4
HEAD = "lm_head.weight"
HEADS = ("lm_head", "embed_tokens", "wte")
# Of these the reference reads the rows of the tokens that it is given, and no others.
TABLES = ("embed_tokens_per_layer", "wpe")
OWN_INPUTS = 4  # copies of the inputs that layers of their own get, while they are worked out


def inspection(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return architecture, formats, parameters and expected memory as plain data."""
    stored = {name: checkpoint.stored(name) for name in checkpoint.names}
    parameters = sum(prod(tensor.shape) for tensor in stored.values())
    weights = sum(tensor.nbytes for tensor in stored.values())
    return {
        "path": str(checkpoint.path),
        "architecture": checkpoint.architecture,
        "config": asdict(checkpoint.config) | common_keys(checkpoint.config),
        "context": context_length(checkpoint.config),
        "parameters": parameters,
        "bits_per_weight": 8 * weights / parameters,
        "formats": formats(stored),
        "memory": memory(checkpoint.config, stored, weights),
        "eos_token_ids": sorted(checkpoint.generation.eos_token_ids),
        "warnings": list(checkpoint.warnings),
        "tensors": [
            {"name": name, "shape": list(t.shape), "format": format_of(t), "nbytes": t.nbytes}
            for name, t in stored.items()
        ],
    }


def common_keys(config: Any) -> dict[str, Any]:
    """Return what every config answers to, whatever its own keys are called."""
    names = [name for name in vars(Config) if isinstance(vars(Config)[name], property)]
    return {name: getattr(config, name) for name in names}


def format_of(tensor: StoredFormat) -> str:
    """Name a tensor's format: its dtype, or the packing with the dtype of its scales."""
    if tensor.bits is None:
        return tensor.dtype
    return f"{tensor.mode} {tensor.bits}-bit, groups of {tensor.group_size}, {tensor.scale_dtype}"


def formats(stored: dict[str, StoredFormat]) -> dict[str, dict[str, Any]]:
    """Count tensors and bytes by format, the largest first, and name the kinds of modules in it."""
    groups: dict[str, dict[str, Any]] = {}
    for name, tensor in stored.items():
        group = groups.setdefault(format_of(tensor), {"tensors": 0, "nbytes": 0, "modules": {}})
        group["tensors"] += 1
        group["nbytes"] += tensor.nbytes
        kind = name.removesuffix(".weight").rpartition(".")[2] if ".bias" not in name else "biases"
        group["modules"][kind] = group["modules"].get(kind, 0) + 1
    return dict(sorted(groups.items(), key=lambda item: -item[1]["nbytes"]))


def memory(config: Any, stored: dict[str, StoredFormat], weights: int) -> dict[str, int]:
    """Estimate bytes: the cache of a token, and the peak of a prompt in each package.

    The peak is in attention, in the feed-forward part or in the head. The reference holds one
    matrix at a time, as stored and a tile of it widened; of a dense head tiles alone, and of a
    table the rows that it looks up. fast holds all weights, on MLX widened to float32 where they
    are not packed.
    """
    alike = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cache = getattr(config, "cached_per_token", alike) * FLOAT32
    wide, held_by_cpu = (sum(map(size, stored.values())) for size in (on_device, on_cpu))
    matrices = {name: t for name, t in stored.items() if len(t.shape) > 1}
    layer = max(unpacking(t) for name, t in matrices.items() if LAYER.search(name))
    outside = [name for name in matrices if not LAYER.search(name) and not looked_up(name, stored)]
    head = max(multiplied(name, matrices[name]) for name in outside)
    prompt = min(PROMPT, context_length(config))
    attention, feed_forward, logits = activations(config, prompt)
    own = config.num_hidden_layers * getattr(config, "hidden_size_per_layer_input", 0)
    held = (cache + OWN_INPUTS * own * FLOAT32) * prompt
    return {
        "tokens": prompt,
        "weights": weights,
        "cache_per_token": cache,
        "reference": held + max(attention, layer + feed_forward, head + logits // 2, logits),
        "fast": held + wide + max(attention, feed_forward, logits),
        "cpu": held + held_by_cpu + max(attention, feed_forward, logits),
    }


def looked_up(name: str, stored: Collection[str]) -> bool:
    """Tell whether a tensor is a table that nothing multiplies by."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    return module in TABLES or (HEAD in stored and module in HEADS[1:])


def on_device(tensor: StoredFormat) -> int:
    """Return the bytes of a tensor in fast: blocks may get scales of their own, in float32."""
    weights = prod(tensor.shape)
    if not tensor.packed:
        return weights * FLOAT32
    return tensor.nbytes + (weights // 4 if tensor.bits is None else 0)


def on_cpu(tensor: StoredFormat) -> int:
    """Return the bytes of a tensor under `fast/kernels`, which widen a matrix as they read it."""
    return tensor.nbytes if len(tensor.shape) > 1 else prod(tensor.shape) * FLOAT32


def unpacking(matrix: StoredFormat) -> int:
    """Return the bytes of a matrix as stored, and of the tile or two of it in float32.

    Of a stack of experts one is unpacked at a time.
    """
    *stack, rows, columns = matrix.shape
    return matrix.nbytes // prod(stack) + min(2 * TILE, rows) * columns * FLOAT32


def multiplied(name: str, matrix: StoredFormat) -> int:
    """Return the bytes of what is multiplied outside of the layers; of a dense head tiles alone."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    if matrix.packed or module not in HEADS:
        return unpacking(matrix)
    rows, columns = matrix.shape
    stored = 0 if matrix.dtype == "F32" else matrix.nbytes // rows * min(TILE, rows)
    return stored + min(2 * TILE, rows) * columns * FLOAT32


def activations(config: Any, prompt: int) -> tuple[int, int, int]:
    """Return the bytes of what is alive at once in attention, feed-forward part and head."""
    width, inner = config.hidden_size, getattr(config, "widest_mlp", config.intermediate_size)
    scores = config.num_attention_heads * prompt
    queries = config.num_attention_heads * getattr(config, "widest_head", config.head_dim)
    rows = (3 * scores + 3 * queries + 2 * width, 3 * inner + 3 * width, 2 * config.vocab_size)
    attention, feed_forward, logits = (prompt * row * FLOAT32 for row in rows)
    return attention, feed_forward, logits
