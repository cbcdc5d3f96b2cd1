"""Gemma 4, the text model of every build: bytes of a checkpoint to logits.

Read it downwards: `attention`, the feed-forward functions, `block`, `stages`. Every number is made
by an operation of `run.ops`; every named value is reported by `run.tap` under the path of its
Hugging Face module. Dimensions are those of `reference/shapes.py`; besides, here N counts layers
and P is the width of a layer's own input.

What is particular to Gemma 4: layers are of two kinds, sliding and full, with heads of two widths
and two rotary embeddings; queries, keys and values are normalised, and scores are not scaled; each
part of a layer is normalised before and after; the embedding and each layer's result are
multiplied by a number; logits are capped. What differs between builds is chosen in `parts_of`,
once a layer: where keys and values come from, what stands beside the MLP (`gemma4_moe.py`), and
whether the layer has an input of its own.

Source: `modeling_gemma4.py` of transformers; Gemma Team 2025, arXiv:2503.19786, for its ancestor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lockstep.reference.models import gemma4_moe
from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Frequencies, Hidden, Keys, Queries, Tokens, Values


@dataclass
class Sight:
    """What layers of one kind share: who sees whom, how heads turn, the last keys and values."""

    mask: Array
    frequencies: Frequencies
    last: tuple[Keys, Values] | None = None


@dataclass(frozen=True)
class Parts:
    """What a layer is made of, chosen once."""

    gather: Callable[[Run, Hidden, int, Sight], tuple[Keys, Values]]
    feed_forward: Callable[[Run, Hidden, int], Hidden]
    finish: Callable[[Run, Hidden, int, Array | None], Hidden]


def attention(run: Run, x: Hidden, layer: int, sight: Sight, parts: Parts) -> Hidden:
    """Let every token gather from the tokens that it may see. Scores are not scaled."""
    ops, config, path = run.ops, run.checkpoint.config, f"model.layers.{layer}.self_attn"
    queries = split(run, x, f"{path}.q_proj", config.num_attention_heads)  # (B, L, H, D)
    queries = turned(run, run.rms_norm(queries, f"{path}.q_norm"), f"{path}.q_rope", sight)
    keys, values = parts.gather(run, x, layer, sight)  # (B, G, S, D)

    context = run.attended(queries, keys, values, sight.mask, path, scale=1.0)  # (B, H, L, D)
    context = ops.merge_heads(context)  # (B, L, H*D)
    return run.linear(run.tap(f"{path}.context", context), f"{path}.o_proj")


def split(run: Run, x: Hidden, path: str, heads: int) -> Array:
    """Project, and cut into heads: (B, L, E) -> (B, L, heads, D)."""
    return run.ops.split_heads(run.linear(x, path), heads=heads)


def turned(run: Run, heads: Array, path: str, sight: Sight) -> Queries:
    """Bring the heads to the front and turn them to their positions."""
    first = run.ops.heads_first(heads)
    return run.tap(path, run.ops.rope(first, run.positions, sight.frequencies, factor=1.0))


def own_values(run: Run, x: Hidden, layer: int, sight: Sight) -> tuple[Keys, Values]:
    """Project keys and values."""
    path, (groups, _) = f"model.layers.{layer}.self_attn", run.checkpoint.config.heads_of(layer)
    keys = split(run, x, f"{path}.k_proj", groups)  # (B, L, G, D)
    return held(run, keys, split(run, x, f"{path}.v_proj", groups), layer, sight)


def keys_as_values(run: Run, x: Hidden, layer: int, sight: Sight) -> tuple[Keys, Values]:
    """Project keys; they are the values too, as they are before their norm and their turn."""
    path, (groups, _) = f"model.layers.{layer}.self_attn", run.checkpoint.config.heads_of(layer)
    keys = split(run, x, f"{path}.k_proj", groups)
    return held(run, keys, keys, layer, sight)


def earlier(run: Run, x: Hidden, layer: int, sight: Sight) -> tuple[Keys, Values]:
    """Take the keys and values of the last layer of this kind that has any."""
    if sight.last is None:
        raise ValueError(f"layer {layer}: no layer of its kind before it has keys")
    return sight.last


def held(run: Run, keys: Array, values: Array, layer: int, sight: Sight) -> tuple[Keys, Values]:
    """Normalise both, turn the keys, and put them behind those of earlier tokens."""
    path, eps = f"model.layers.{layer}.self_attn", run.checkpoint.config.rms_norm_eps
    keys = turned(run, run.rms_norm(keys, f"{path}.k_norm"), f"{path}.k_rope", sight)
    values = run.tap(f"{path}.v_norm", run.ops.unit_norm(values, eps=eps))
    sight.last = run.cache.update(run.ops, layer, keys, run.ops.heads_first(values))
    return sight.last


def mlp(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let every token work on what it gathered: a gated MLP, on a normalised copy."""
    ops, path = run.ops, f"model.layers.{layer}.mlp"
    normed = run.rms_norm(x, f"model.layers.{layer}.pre_feedforward_layernorm")
    gate = run.linear(normed, f"{path}.gate_proj")  # (B, L, F)
    up = run.linear(normed, f"{path}.up_proj")
    gated = ops.multiply(run.tap(f"{path}.act_fn", ops.gelu_tanh(gate)), up)
    return run.linear(gated, f"{path}.down_proj")


def mlp_and_experts(run: Run, x: Hidden, layer: int) -> Hidden:
    """The MLP, and beside it the experts that the router chooses."""
    return gemma4_moe.beside(run, x, mlp(run, x, layer), layer)


def scaled(run: Run, x: Hidden, layer: int, inputs: Array | None) -> Hidden:
    """Multiply the whole stream by the layer's number."""
    path = f"model.layers.{layer}"
    return run.tap(path, run.ops.gain(x, run.weight(f"{path}.layer_scalar")))


def with_input(run: Run, x: Hidden, layer: int, inputs: Array | None) -> Hidden:
    """Add the layer's own input of each token, gated by the stream; then as `scaled`."""
    ops, path = run.ops, f"model.layers.{layer}"
    own = ops.column_block(inputs, block=layer, blocks=run.checkpoint.config.num_hidden_layers)
    gate = ops.gelu_tanh(run.linear(x, f"{path}.per_layer_input_gate"))  # (B, L, P)
    gated = ops.multiply(run.tap(f"{path}.act_fn", gate), own)
    added = run.linear(gated, f"{path}.per_layer_projection")
    added = run.rms_norm(added, f"{path}.post_per_layer_input_norm")
    return scaled(run, ops.add(x, added), layer, None)


def block(
    run: Run, x: Hidden, layer: int, sight: Sight, parts: Parts, inputs: Array | None
) -> Hidden:
    """Attend and think, each normalised before and after, each added to the stream."""
    ops, path = run.ops, f"model.layers.{layer}"
    normed = run.rms_norm(x, f"{path}.input_layernorm")
    attended = attention(run, normed, layer, sight, parts)
    attended = run.rms_norm(attended, f"{path}.post_attention_layernorm")
    x = run.tap(f"{path}.residual", ops.add(x, attended))
    thought = parts.feed_forward(run, x, layer)
    x = ops.add(x, run.rms_norm(thought, f"{path}.post_feedforward_layernorm"))
    return parts.finish(run, x, layer, inputs)


def parts_of(run: Run, layer: int) -> Parts:
    """Choose what a layer is made of."""
    config = run.checkpoint.config
    gather = own_values if config.has_values(layer) else keys_as_values
    return Parts(
        gather=gather if config.owns_keys(layer) else earlier,
        feed_forward=mlp_and_experts if config.enable_moe_block else mlp,
        finish=with_input if config.hidden_size_per_layer_input else scaled,
    )


def layer_inputs(run: Run, tokens: Tokens, x: Hidden) -> Array:
    """Look up the inputs of all layers and add what the embedding says of them: (B, L, N*P).

    Each layer of these builds has a small embedding of its own; all lie in one wide table.
    """
    ops, config = run.ops, run.checkpoint.config
    layers, width = config.num_hidden_layers, config.hidden_size_per_layer_input
    looked_up = ops.scale(run.looked_up(tokens, "model.embed_tokens_per_layer"), by=width**0.5)
    looked_up = run.tap("model.embed_tokens_per_layer", looked_up)
    said = run.linear(x, "model.per_layer_model_projection")
    said = ops.split_heads(ops.scale(said, by=config.hidden_size**-0.5), heads=layers)
    said = run.rms_norm(said, "model.per_layer_projection_norm")  # (B, L, N, P)
    said = ops.merge_heads(ops.heads_first(said))
    return run.tap("model.per_layer_inputs", ops.scale(ops.add(said, looked_up), by=2**-0.5))


def head(run: Run, x: Hidden) -> Array:
    """Score every token of the vocabulary: (B, L, E) -> (B, L, V)."""
    config = run.checkpoint.config
    if run.wanted is not None:
        x = run.ops.take_rows(x, run.wanted)  # (B, N, E)
    x = run.rms_norm(x, "model.norm")
    tied_to = "model.embed_tokens" if config.tie_word_embeddings else None
    logits = run.unembedded(x, tied_to)
    if config.final_logit_softcapping is not None:
        logits = run.ops.softcap(logits, cap=config.final_logit_softcapping)
    return run.tap("logits", logits)


def sights(run: Run) -> dict[str, Sight]:
    """Say for each kind of layer who sees whom, and how far heads turn."""
    ops, config = run.ops, run.checkpoint.config
    window = config.sliding_window
    sliding = ops.rope_frequencies(theta=config.rope_theta, dims=config.head_dim)
    full = ops.rope_frequencies_proportional(
        theta=config.global_rope_theta,
        dims=config.global_head_dim,
        partial_rotary_factor=config.partial_rotary_factor,
    )
    kinds = {"sliding_attention": (window, sliding), "full_attention": (None, full)}
    return {
        kind: Sight(ops.causal_mask(run.places, run.keys_of(kind), window=reach), frequencies)
        for kind, (reach, frequencies) in kinds.items()
    }


def stages(run: Run, tokens: Tokens) -> Iterator[tuple[str, Array]]:
    """Yield the stream after the embedding, after each layer, and the logits, as they are made."""
    ops, config = run.ops, run.checkpoint.config
    x = ops.scale(run.looked_up(tokens, "model.embed_tokens"), by=config.hidden_size**0.5)
    x = run.tap("model.embed_tokens", x)
    inputs = layer_inputs(run, tokens, x) if config.hidden_size_per_layer_input else None
    yield "model.embed_tokens", x

    by_kind = sights(run)
    for layer, kind in enumerate(config.layer_types):
        x = block(run, x, layer, by_kind[kind], parts_of(run, layer), inputs)
        yield f"model.layers.{layer}", x
    yield "logits", head(run, x)
