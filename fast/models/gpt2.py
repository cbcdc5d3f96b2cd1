"""GPT-2 with fused attention.

The order and the names are those of `reference/models/gpt2.py`; read that one first. What fusion
hides (`.scores`, `.probs`) has no tap here.
"""

from collections.abc import Iterator

from lockstep.fast.run import Run
from lockstep.fast.shapes import Array, Hidden, Queries, Tokens


def attention(run: Run, x: Hidden, layer: int, mask: Array) -> Hidden:
    ops, config, path = run.ops, run.config, f"transformer.h.{layer}.attn"
    fused = run.linear(x, f"{path}.c_attn")  # (B, L, 3*H*D)
    queries, keys, values = (heads(run, fused, block) for block in range(3))  # (B, H, L, D)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, H, S, D)

    scale = config.attention_scale(layer)
    context = ops.attention(queries, keys, values, mask, scale=scale, masked_row="uniform")
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.c_proj")


def heads(run: Run, fused: Array, block: int) -> Queries:
    columns = run.ops.column_block(fused, block=block, blocks=3)
    return run.ops.heads_first(run.ops.split_heads(columns, heads=run.config.num_attention_heads))


def feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    path = f"transformer.h.{layer}.mlp"
    gelu = run.ops.gelu_erf if run.config.activation_function == "gelu" else run.ops.gelu_tanh
    inner = gelu(run.linear(x, f"{path}.c_fc"))  # (B, L, F)
    return run.linear(run.tap(f"{path}.act", inner), f"{path}.c_proj")


def block(run: Run, x: Hidden, layer: int, mask: Array) -> Hidden:
    path = f"transformer.h.{layer}"
    attended = attention(run, run.layer_norm(x, f"{path}.ln_1"), layer, mask)
    x = run.tap(f"{path}.residual", run.ops.add(x, attended))
    thought = feed_forward(run, run.layer_norm(x, f"{path}.ln_2"), layer)
    return run.tap(path, run.ops.add(x, thought))


def head(run: Run, x: Hidden) -> Array:
    if run.wanted is not None:
        x = run.ops.take_rows(x, run.wanted)  # (B, N, E)
    x = run.layer_norm(x, "transformer.ln_f")
    tied_to = "transformer.wte" if run.config.tie_word_embeddings else None
    logits = run.unembedded(x, tied_to)
    return run.tap("logits", logits)


def stages(run: Run, tokens: Tokens) -> Iterator[tuple[str, Array]]:
    """Yield the stream after the embeddings, after each layer, and the logits, as they are made."""
    embedded = run.tap("transformer.wte", run.looked_up(tokens, "transformer.wte"))
    placed = run.tap("transformer.wpe", run.looked_up(run.positions, "transformer.wpe"))
    x = run.tap("transformer.drop", run.ops.add(embedded, placed))
    yield "transformer.drop", x

    mask = run.ops.causal_mask(run.places, run.keys_of("full_attention"), window=None)
    for layer in range(run.config.n_layer):
        x = block(run, x, layer, mask)
        yield f"transformer.h.{layer}", x
    yield "logits", head(run, x)
