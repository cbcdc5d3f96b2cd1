"""Random tiny Qwen3 checkpoints of awkward shapes, for finding out what a right port shows."""

import json
from pathlib import Path
from typing import Any

import numpy as np

TAGS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint32": "U32"}
LAYERS = 2
BITS = (2, 3, 4, 5, 6, 8)


def random_config(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a config: heads that do not fill the hidden width, groups, windows, biases, ties."""

    def draw(*choices: Any) -> Any:
        return rng.choice(np.array(choices, object))

    head_dim, groups = draw(32, 32, 64, 128), draw(1, 2, 4)
    return {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": draw(64, 64, 128, 128, 192, 256, 512, 1024),
        "intermediate_size": draw(64, 128, 192, 256, 768, 1024),
        "num_hidden_layers": LAYERS,
        "num_attention_heads": groups * draw(1, 2, 3),
        "num_key_value_heads": groups,
        "head_dim": head_dim,
        "vocab_size": int(rng.integers(50, 400)),
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": draw(1e4, 1e6, 5e6),
        "tie_word_embeddings": draw(True, False),
        "attention_bias": draw(True, False),
        "use_sliding_window": True,
        "sliding_window": draw(1, 8, 30),
        "max_window_layers": draw(1, 2),  # so the last layer slides, or none
    }


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that the config asks for."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    head, vocab = config["head_dim"], config["vocab_size"]
    query, key = (config[f"num_{kind}_heads"] * head for kind in ("attention", "key_value"))
    parts = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, query),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(config["num_hidden_layers"]):
        for part, shape in parts.items():
            shapes[f"model.layers.{layer}.{part}.weight"] = shape
            if config["attention_bias"] and part.startswith("self_attn") and len(shape) == 2:
                shapes[f"model.layers.{layer}.{part}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (width,)
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (vocab, width)}


def random_weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw a tensor so that every part matters: wide gains, and channels of unequal size."""
    noise = rng.normal(size=shape)
    if name.endswith("norm.weight"):
        return np.exp(0.5 * noise)
    if name.endswith("bias"):
        return 0.5 * noise
    if "embed_tokens" in name:
        return 0.5 * noise * np.exp(0.7 * rng.normal(size=shape[1]))
    return 1.2 * noise / np.sqrt(shape[1]) * np.exp(0.3 * rng.normal(size=(shape[0], 1)))


def write_checkpoint(
    folder: Path, config: dict[str, Any], *, seed: int, stored: str, bits: int | None = None
) -> Path:
    """Write config.json and model.safetensors with weights in `stored`, or packed to `bits`."""
    rng = np.random.default_rng(seed)
    drawn = {
        name: random_weight(name, shape, rng).astype(numpy_dtype(stored))
        for name, shape in weight_shapes(config).items()
    }
    if bits is not None:
        config = config | {"quantization": {"group_size": 32, "bits": bits}}
        drawn = packed(drawn, bits)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(drawn))
    return folder


def packed(drawn: dict[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """Quantise every matrix as MLX does, in groups of 32."""
    import mlx.core as mx

    from lockstep.fast.backends.mlx import from_numpy
    from lockstep.parity.arrays import to_numpy

    found = {}
    for name, value in drawn.items():
        if value.ndim == 1:
            found[name] = value
            continue
        parts = mx.quantize(from_numpy(value), group_size=32, bits=bits)
        stem = name.removesuffix(".weight")
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            found[f"{stem}.{part}"] = to_numpy(array)
    return found


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a safetensors file."""
    header, bodies, start = {}, [], 0
    for name, array in tensors.items():
        body = np.ascontiguousarray(array).tobytes()
        place = [start, start := start + len(body)]
        shape, tag = list(array.shape), TAGS[array.dtype.name]
        header[name] = {"dtype": tag, "shape": shape, "data_offsets": place}
        bodies.append(body)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *bodies])


def numpy_dtype(name: str) -> np.dtype:
    from lockstep.reference.precision import dtype_named

    return dtype_named(name)
