"""Qwen3-MoE with fused operations: attention, the gate and all experts are one operation each.

The order and the names are those of `reference/models/qwen3_moe.py`; read that one first. What
fusion hides (`.scores`, `.probs`, `mlp.act_fn`) has no tap here.
"""

from collections.abc import Callable, Iterator

from lockstep.fast.run import Run
from lockstep.fast.shapes import Array, Hidden, Tokens

UNHEARD = ("heads_at_once",)  # what of `Run` it uses where nobody listens
FeedForward = Callable[[Run, Hidden, int], Hidden]  # of the stream, which each norms itself


def attention(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    ops, config, path = run.ops, run.config, f"model.layers.{layer}.self_attn"
    paths = (f"{path}.{one}_proj" for one in "qkv")
    queries, keys, values = run.linears(x, *paths)  # (B, L, H*D), (B, L, G*D), (B, L, G*D)
    queries = ops.split_heads(queries, heads=config.num_attention_heads)  # (B, L, H, D)
    keys = ops.split_heads(keys, heads=config.num_key_value_heads)  # (B, L, G, D)
    values = ops.heads_first(ops.split_heads(values, heads=config.num_key_value_heads))

    queries, keys = run.turned_heads(queries, keys, path, frequencies)  # (B, H, L, D), (B, G, L, D)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, G, S, D)

    scale = config.head_dim**-0.5
    context = ops.attention(queries, keys, values, mask, scale=scale, masked_row="uniform")
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.o_proj")


def normed_for_mlp(run: Run, x: Hidden, layer: int) -> Hidden:
    return run.rms_norm(x, f"model.layers.{layer}.post_attention_layernorm")


def dense_feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    path = f"model.layers.{layer}.mlp"
    foresee(run, x, layer)
    x = normed_for_mlp(run, x, layer)
    gate, up = run.linears(x, f"{path}.gate_proj", f"{path}.up_proj")  # (B, L, F)
    return run.linear(run.ops.swiglu(gate, up), f"{path}.down_proj")


def route(run: Run, x: Hidden, layer: int) -> Array:
    config, path = run.config, f"model.layers.{layer}.mlp"
    logits = run.linear(x, f"{path}.gate")  # (B, L, X)
    routing = run.ops.top_k_routing(
        logits, per_token=config.num_experts_per_tok, normalize=config.norm_topk_prob
    )
    return run.tap(f"{path}.routing", routing)


def foresee(run: Run, x: Hidden, layer: int) -> None:
    """Guess what the next layer will choose: what it would, if this one's experts said nothing."""
    if layer + 1 < run.config.num_hidden_layers and run.config.is_sparse(layer + 1):
        path = f"model.layers.{layer + 1}.mlp.experts"
        run.foresee(path, lambda run: route(run, normed_for_mlp(run, x, layer + 1), layer + 1))


def sparse_feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    ops, config, path = run.ops, run.config, f"model.layers.{layer}.mlp"
    stream, x = x, normed_for_mlp(run, x, layer)
    routing = route(run, x, layer)
    run.visit(f"{path}.experts", routing)
    foresee(run, stream, layer)
    gate, up, down = (run.stack(f"{path}.experts.{name}_proj") for name in ("gate", "up", "down"))
    said = ops.experts(x, routing, gate, up, down, per_token=config.num_experts_per_tok)
    return run.tap(f"{path}.experts", said)


def block(
    run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array, feed_forward: FeedForward
) -> Hidden:
    path = f"model.layers.{layer}"
    normed = run.rms_norm(x, f"{path}.input_layernorm")
    attended = attention(run, normed, layer, mask, frequencies)
    x = run.tap(f"{path}.residual", run.ops.add(x, attended))
    return run.tap(path, run.ops.add(x, feed_forward(run, x, layer)))


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
    kind = "full_attention" if config.sliding_window is None else "sliding_attention"
    mask = ops.causal_mask(run.places, run.keys_of(kind), window=config.sliding_window)
    for layer in range(config.num_hidden_layers):
        feed_forward = sparse_feed_forward if config.is_sparse(layer) else dense_feed_forward
        x = block(run, x, layer, mask, frequencies, feed_forward)
        yield f"model.layers.{layer}", x
    yield "logits", head(run, x)
