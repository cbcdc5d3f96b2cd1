"""Llama, 1 to 3, and what has its layers: Mistral, Qwen2 and Qwen2.5.

Read it downwards: `attention`, `feed_forward`, `block`, `stages`. Every number is made by an
operation of `run.ops`; every named value is reported by `run.tap` under the path of its Hugging
Face module. Dimensions are those of `reference/shapes.py`.

What differs inside the family is in the config and the tensors: which projections have a bias (none
as a rule; queries, keys and values in Qwen2), which layers see a window (all in the first Mistral),
and how positions are stretched for long texts (`rope_scaling`).

Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2; Jiang et al. 2023, arXiv:2310.06825;
`modeling_llama.py` of transformers.
"""

from collections.abc import Iterator

from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Hidden, Queries, Tokens


def attention(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    """Let every token gather from the tokens that it may see."""
    ops, config, path = run.ops, run.checkpoint.config, f"model.layers.{layer}.self_attn"
    queries = heads(run, x, f"{path}.q_proj", config.num_attention_heads)  # (B, H, L, D)
    keys = heads(run, x, f"{path}.k_proj", config.num_key_value_heads)  # (B, G, L, D)
    values = heads(run, x, f"{path}.v_proj", config.num_key_value_heads)

    queries = run.rope(queries, f"{path}.q_rope", frequencies)
    keys = run.rope(keys, f"{path}.k_rope", frequencies)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, G, S, D)

    scale = config.head_dim**-0.5
    context = run.attended(queries, keys, values, mask, path, scale=scale)  # (B, H, L, D)
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.o_proj")


def heads(run: Run, x: Hidden, path: str, count: int) -> Queries:
    """Project and cut into heads: the queries, the keys or the values."""
    return run.ops.heads_first(run.ops.split_heads(run.linear(x, path), heads=count))


def feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let every token work on what it gathered: a gated MLP."""
    ops, path = run.ops, f"model.layers.{layer}.mlp"
    gate = run.linear(x, f"{path}.gate_proj")  # (B, L, F)
    up = run.linear(x, f"{path}.up_proj")
    gated = ops.multiply(run.tap(f"{path}.act_fn", ops.silu(gate)), up)
    return run.linear(gated, f"{path}.down_proj")


def block(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    """Attend and think, each on a normalised copy, each added to the stream."""
    path = f"model.layers.{layer}"
    attended = attention(run, run.rms_norm(x, f"{path}.input_layernorm"), layer, mask, frequencies)
    x = run.tap(f"{path}.residual", run.ops.add(x, attended))
    thought = feed_forward(run, run.rms_norm(x, f"{path}.post_attention_layernorm"), layer)
    return run.tap(path, run.ops.add(x, thought))


def head(run: Run, x: Hidden) -> Array:
    """Score every token of the vocabulary: (B, L, E) -> (B, L, V)."""
    if run.wanted is not None:
        x = run.ops.take_rows(x, run.wanted)  # (B, N, E)
    x = run.rms_norm(x, "model.norm")
    tied_to = "model.embed_tokens" if run.checkpoint.config.tie_word_embeddings else None
    logits = run.unembedded(x, tied_to)
    return run.tap("logits", logits)


def stages(run: Run, tokens: Tokens) -> Iterator[tuple[str, Array]]:
    """Yield the stream after the embedding, after each layer, and the logits, as they are made."""
    ops, config = run.ops, run.checkpoint.config
    x = run.tap("model.embed_tokens", run.looked_up(tokens, "model.embed_tokens"))
    yield "model.embed_tokens", x

    frequencies = config.rope_scaling.frequencies(
        ops, theta=config.rope_theta, dims=config.head_dim, lengths=run.lengths
    )
    windows = {"full_attention": None, "sliding_attention": config.sliding_window}
    masks = {
        kind: ops.causal_mask(run.places, run.keys_of(kind), window=windows[kind])
        for kind in sorted(set(config.layer_types))
    }
    for layer, kind in enumerate(config.layer_types):
        x = block(run, x, layer, masks[kind], frequencies)
        yield f"model.layers.{layer}", x
    yield "logits", head(run, x)
