"""Faults that are small on purpose, for finding out which ones a check misses.

Each is planted in a model of the `cpu` backend, and says at which tap it must be found. None means
that it does not apply to this model.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.quantized import QuantizedTensor

Plant = Callable[[Any, np.random.Generator], str | None]
LAYER, ATTENTION = "model.layers.0", "model.layers.0.self_attn"


def with_ops(port: Any, **changed: Any) -> None:
    """Give the model other operations."""
    right = {name: getattr(port.ops, name) for name in port.ops.__all__}
    port.ops = SimpleNamespace(**right | changed)


def some_matrix(port: Any, rng: np.random.Generator, packed: bool) -> str | None:
    """Draw the name of a projection that is stored plain, or packed with floats for scales."""
    names = sorted(
        name for name, weight in port.weights.items()
        if name.endswith("_proj.weight")
        and (isinstance(weight, QuantizedTensor) if packed else not isinstance(weight, Packed))
    )  # fmt: skip
    return str(rng.choice(names)) if names else None


def scaled_weight(factor: float) -> Plant:
    """Multiply one weight, of usual size, by a factor."""

    def plant(port: Any, rng: np.random.Generator) -> str | None:
        name = some_matrix(port, rng, packed=False)
        if name is None:
            return None
        weight = port.weights[name].copy()
        place = int(np.argsort(np.abs(weight), axis=None)[weight.size * 2 // 3])
        weight.flat[place] *= weight.dtype.type(factor)
        port.weights[name] = weight
        return name.removesuffix(".weight")

    return plant


def one_code(port: Any, rng: np.random.Generator) -> str | None:
    """Flip the lowest bit of one packed code."""
    name = some_matrix(port, rng, packed=True)
    if name is None:
        return None
    weight = port.weights[name]
    words = weight.packed.copy()
    words.flat[rng.integers(words.size)] ^= np.uint32(1)
    port.weights[name] = replace(weight, packed=words)
    return name.removesuffix(".weight")


def coarse_gain(port: Any, rng: np.random.Generator) -> str | None:
    name = f"{LAYER}.input_layernorm"
    port.weights[f"{name}.weight"] = coarse(port.weights[f"{name}.weight"])
    return name


def coarse_scales(port: Any, rng: np.random.Generator) -> str | None:
    name = some_matrix(port, rng, packed=True)
    if name is None:
        return None
    weight = port.weights[name]
    port.weights[name] = replace(weight, scales=coarse(weight.scales))
    return name.removesuffix(".weight")


def coarse(x: np.ndarray) -> np.ndarray:
    """Round to bfloat16 and back."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def no_bias(port: Any, rng: np.random.Generator) -> str | None:
    found = port.weights.pop(f"{ATTENTION}.q_proj.bias", None)
    return None if found is None else f"{ATTENTION}.q_proj"


def swapped_heads(port: Any, rng: np.random.Generator) -> str | None:
    """Exchange the rows of the first two query heads."""
    name, head = f"{ATTENTION}.q_proj", port.config.head_dim
    weight = port.weights[f"{name}.weight"]
    if port.config.num_attention_heads < 2 or isinstance(weight, Packed):
        return None
    order = [*range(head, 2 * head), *range(head), *range(2 * head, len(weight))]
    port.weights[f"{name}.weight"] = weight[order]
    return name


def larger_eps(port: Any, rng: np.random.Generator) -> str | None:
    port.config = replace(port.config, rms_norm_eps=10 * port.config.rms_norm_eps)
    return f"{LAYER}.input_layernorm"


def larger_theta(port: Any, rng: np.random.Generator) -> str | None:
    port.config = replace(port.config, rope_theta=1.01 * port.config.rope_theta)
    return f"{ATTENTION}.q_rope"


def wider_window(port: Any, rng: np.random.Generator) -> str | None:
    if "sliding_attention" not in port.config.layer_types:
        return None
    port.config = replace(port.config, sliding_window=port.config.sliding_window + 1)
    layer = port.config.layer_types.index("sliding_attention")
    return f"model.layers.{layer}.self_attn.context"


def later_positions(port: Any, rng: np.random.Generator) -> str | None:
    right = port.ops.rope

    def rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
        return right(x, positions + 1, frequencies, factor=factor)

    with_ops(port, rope=rope)
    return f"{ATTENTION}.q_rope"


def larger_scale(factor: float) -> Plant:
    def plant(port: Any, rng: np.random.Generator) -> str | None:
        right = port.ops.attention

        def attention(*inputs: Any, scale: float, masked_row: str) -> Any:
            return right(*inputs, scale=scale * factor, masked_row=masked_row)

        with_ops(port, attention=attention)
        return f"{ATTENTION}.context"

    return plant


def other_mask(change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Let attention see other keys; a row that would see none keeps what it saw."""

    def plant(port: Any, rng: np.random.Generator) -> str | None:
        right = port.ops.attention

        def attention(q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
            seen = change(mask.mask)
            seen = np.where(seen.any(axis=-1, keepdims=True), seen, mask.mask)
            return right(q, k, v, replace(mask, kind="some", mask=seen), **options)

        with_ops(port, attention=attention)
        return f"{ATTENTION}.context"

    return plant


def without_newest(mask: np.ndarray) -> np.ndarray:
    """Hide the last key that each query sees: its own."""
    newest = mask.shape[-1] - 1 - np.argmax(mask[..., ::-1], axis=-1)
    return mask & (np.arange(mask.shape[-1]) != newest[..., None])


def without_oldest(mask: np.ndarray) -> np.ndarray:
    """Hide the first key that each query sees."""
    return mask & (np.arange(mask.shape[-1]) != np.argmax(mask, axis=-1)[..., None])


def with_next(mask: np.ndarray) -> np.ndarray:
    """Let each query see one key of the future."""
    return mask | np.concatenate([mask[..., :1], mask[..., :-1]], axis=-1)


def tiled_heads(port: Any, rng: np.random.Generator) -> str | None:
    """Give query head h the key head h % G, not h // (H/G)."""
    right, config = port.ops.attention, port.config
    copies = config.num_attention_heads // config.num_key_value_heads
    if config.num_key_value_heads == 1 or copies == 1:
        return None

    def attention(q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        k, v = (np.tile(shared, (1, copies, 1, 1)) for shared in (k, v))
        return right(q, k, v, mask, **options)

    with_ops(port, attention=attention)
    return f"{ATTENTION}.context"


def coarse_probs(port: Any, rng: np.random.Generator) -> str | None:
    """Round the attention probabilities to bfloat16."""
    ops = port.ops

    def attention(q: Any, k: Any, v: Any, mask: Any, *, scale: float, masked_row: str) -> Any:
        scores = ops.attention_scores(q, k, scale=scale)
        probs = ops.softmax(scores, mask, masked_row=masked_row)
        return ops.attention_context(coarse(probs), v, mask)

    with_ops(port, attention=attention)
    return f"{ATTENTION}.context"


def wavy_silu(size: float) -> Plant:
    """Use an exponential with a relative error of up to `size`, as fast approximations have."""

    def plant(port: Any, rng: np.random.Generator) -> str | None:
        def swiglu(gate: Any, up: Any) -> Any:
            wide = gate.astype(np.float32)
            power = np.exp(-np.abs(wide)) * (1 + np.float32(size) * np.sin(9 * wide))
            silu = wide * np.where(wide < 0, power, 1) / (1 + power)
            return silu.astype(gate.dtype) * up

        with_ops(port, swiglu=swiglu)
        return f"{LAYER}.mlp.down_proj"

    return plant


def fewer_in_mean(port: Any, rng: np.random.Generator) -> str | None:
    """Divide the sum of squares by one less than the width."""
    right = port.ops.rms_norm

    def rms_norm(x: Any, gain: Any, *, eps: float) -> Any:
        wide, width = x.astype(np.float32), x.shape[-1]
        shrunk = right(wide, gain.astype(np.float32), eps=eps) * np.float32((1 - 1 / width) ** 0.5)
        return shrunk.astype(x.dtype)

    with_ops(port, rms_norm=rms_norm)
    return f"{LAYER}.input_layernorm"


def coarse_stream(port: Any, rng: np.random.Generator) -> str | None:
    """Keep the residual stream in bfloat16."""
    right = port.ops.add
    with_ops(port, add=lambda x, y: coarse(right(x, y)))
    return f"{LAYER}.residual"


def short_products(port: Any, rng: np.random.Generator) -> str | None:
    """Cut the inputs of projections to 10 bits of mantissa, as TF32 does."""
    right = port.ops.linear

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
        return right(bits.view(np.float32).astype(x.dtype), weight, bias)

    with_ops(port, linear=linear)
    return f"{ATTENTION}.q_proj"


IN_ONE_PLACE: dict[str, Plant] = {
    "one weight 1 % too large": scaled_weight(1.01),
    "one weight 10 % too large": scaled_weight(1.1),
    "one weight of the wrong sign": scaled_weight(-1.0),
    "lowest bit of one packed weight": one_code,
    "norm gain rounded to bfloat16": coarse_gain,
    "scales rounded to bfloat16": coarse_scales,
    "bias of q_proj dropped": no_bias,
    "two query heads exchanged": swapped_heads,
    "window one too wide": wider_window,
}
IN_EVERY_LAYER: dict[str, Plant] = {
    "query heads on the wrong key heads": tiled_heads,
    "eps 1e-5 for 1e-6": larger_eps,
    "mean of squares over width - 1": fewer_in_mean,
    "rope theta 1 % too large": larger_theta,
    "positions one too large": later_positions,
    "attention scale 1 % too large": larger_scale(1.01),
    "attention scale 0.1 % too large": larger_scale(1.001),
    "newest key not seen": other_mask(without_newest),
    "oldest key not seen": other_mask(without_oldest),
    "one future key seen": other_mask(with_next),
    "probabilities rounded to bfloat16": coarse_probs,
    "exponential in SiLU off by 1e-3": wavy_silu(1e-3),
    "exponential in SiLU off by 1e-5": wavy_silu(1e-5),
    "residual stream in bfloat16": coarse_stream,
    "inputs of products cut to TF32": short_products,
}
FAULTS = IN_ONE_PLACE | IN_EVERY_LAYER
