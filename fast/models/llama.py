"""Llama, Mistral and Qwen2 with fused operations: attention and the gate are one operation each.

The order and the names are those of `reference/models/llama.py`; read that one first. What fusion
hides (`.scores`, `.probs`, `mlp.act_fn`) has no tap here.
"""

from collections.abc import Iterator

from lockstep.fast.run import Run
from lockstep.fast.shapes import Array, Hidden, Queries, Tokens

UNHEARD = ("layers",)  # what of `Run` it uses where nobody listens


def attention(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    ops, config, path = run.ops, run.config, f"model.layers.{layer}.self_attn"
    queries, keys, values = run.linears(x, *(f"{path}.{one}_proj" for one in "qkv"))
    queries = heads(run, queries, config.num_attention_heads)  # (B, H, L, D)
    keys = heads(run, keys, config.num_key_value_heads)  # (B, G, L, D)
    values = heads(run, values, config.num_key_value_heads)

    queries = run.rope(queries, f"{path}.q_rope", frequencies)
    keys = run.rope(keys, f"{path}.k_rope", frequencies)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, G, S, D)

    scale = config.head_dim**-0.5
    context = ops.attention(queries, keys, values, mask, scale=scale, masked_row="uniform")
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.o_proj")


def heads(run: Run, x: Hidden, count: int) -> Queries:
    return run.ops.heads_first(run.ops.split_heads(x, heads=count))


def feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    path = f"model.layers.{layer}.mlp"
    gate, up = run.linears(x, f"{path}.gate_proj", f"{path}.up_proj")  # (B, L, F)
    return run.linear(run.ops.swiglu(gate, up), f"{path}.down_proj")


def block(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    path = f"model.layers.{layer}"
    normed = run.rms_norm(x, f"{path}.input_layernorm")
    attended = attention(run, normed, layer, mask, frequencies)
    x = run.tap(f"{path}.residual", run.ops.add(x, attended))
    thought = feed_forward(run, run.rms_norm(x, f"{path}.post_attention_layernorm"), layer)
    return run.tap(path, run.ops.add(x, thought))


def head(run: Run, x: Hidden) -> Array:
    if run.wanted is not None:
        x = run.ops.take_rows(x, run.wanted)  # (B, N, E)
    x = run.rms_norm(x, "model.norm")
    tied_to = "model.embed_tokens" if run.config.tie_word_embeddings else None
    logits = run.unembedded(x, tied_to)
    return run.tap("logits", logits)


def stages(run: Run, tokens: Tokens) -> Iterator[tuple[str, Array]]:
    """Yield the stream after the embedding, after each layer, and the logits, as they are made."""
    ops, config = run.ops, run.config
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
    done = run.layers_at_once(x, masks, frequencies)
    for layer, kind in enumerate(config.layer_types):
        known = layer < len(done)
        x = done[layer] if known else block(run, x, layer, masks[kind], frequencies)
        yield f"model.layers.{layer}", x
    yield "logits", head(run, x)
