"""Qwen3-MoE: bytes of a checkpoint to logits in one file.

Read it downwards: `attention`, `dense_feed_forward` and `sparse_feed_forward`, `block`, `stages`.
Every number is made by an operation of `run.ops`; every named value is reported by `run.tap` under
the path of its Hugging Face module. Dimensions are those of `reference/shapes.py`.

What is particular to Qwen3-MoE: in a sparse layer each token is worked on by a few of many small
MLPs, which a router chooses for it; dense layers may stand among the sparse ones. Attention is that
of Qwen3, with each head's query and key normalised before it is turned.

Source: Qwen Team 2025, arXiv:2505.09388, section 2; `modeling_qwen3_moe.py` of transformers.
"""

from collections.abc import Callable, Iterator

from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Hidden, Queries, Tokens

FeedForward = Callable[[Run, Hidden, int], Hidden]


def attention(run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array) -> Hidden:
    """Let every token gather from the tokens that it may see."""
    ops, config, path = run.ops, run.checkpoint.config, f"model.layers.{layer}.self_attn"
    queries = normed_heads(run, x, f"{path}.q", config.num_attention_heads)  # (B, H, L, D)
    keys = normed_heads(run, x, f"{path}.k", config.num_key_value_heads)  # (B, G, L, D)
    values = run.linear(x, f"{path}.v_proj")
    values = ops.heads_first(ops.split_heads(values, heads=config.num_key_value_heads))

    queries = run.rope(queries, f"{path}.q_rope", frequencies)
    keys = run.rope(keys, f"{path}.k_rope", frequencies)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, G, S, D)

    scale = config.head_dim**-0.5
    context = run.attended(queries, keys, values, mask, path, scale=scale)  # (B, H, L, D)
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.o_proj")


def normed_heads(run: Run, x: Hidden, path: str, heads: int) -> Queries:
    """Project, cut into heads, and normalise each head: the queries or the keys."""
    projected = run.ops.split_heads(run.linear(x, f"{path}_proj"), heads=heads)  # (B, L, H, D)
    return run.ops.heads_first(run.rms_norm(projected, f"{path}_norm"))


def dense_feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let every token work on what it gathered: a gated MLP."""
    ops, path = run.ops, f"model.layers.{layer}.mlp"
    gate = run.linear(x, f"{path}.gate_proj")  # (B, L, F)
    up = run.linear(x, f"{path}.up_proj")
    gated = ops.multiply(run.tap(f"{path}.act_fn", ops.silu(gate)), up)
    return run.linear(gated, f"{path}.down_proj")


def sparse_feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let the experts that the router chooses for a token work on it."""
    ops, config, path = run.ops, run.checkpoint.config, f"model.layers.{layer}.mlp"
    logits = run.linear(x, f"{path}.gate")  # (B, L, X)
    routing = ops.top_k_routing(
        logits, per_token=config.num_experts_per_tok, normalize=config.norm_topk_prob
    )
    gate, up, down = (run.stack(f"{path}.experts.{name}_proj") for name in ("gate", "up", "down"))
    routing = run.tap(f"{path}.routing", routing)
    said = ops.experts(x, routing, gate, up, down, per_token=config.num_experts_per_tok)
    return run.tap(f"{path}.experts", said)


def block(
    run: Run, x: Hidden, layer: int, mask: Array, frequencies: Array, feed_forward: FeedForward
) -> Hidden:
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
    kind = "full_attention" if config.sliding_window is None else "sliding_attention"
    mask = ops.causal_mask(run.places, run.keys_of(kind), window=config.sliding_window)
    for layer in range(config.num_hidden_layers):
        feed_forward = sparse_feed_forward if config.is_sparse(layer) else dense_feed_forward
        x = block(run, x, layer, mask, frequencies, feed_forward)
        yield f"model.layers.{layer}", x
    yield "logits", head(run, x)
