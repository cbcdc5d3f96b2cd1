"""GPT-2: bytes of a checkpoint to logits in one file.

Read it downwards: `attention`, `feed_forward`, `block`, `stages`. Every number is made by an
operation of `run.ops`; every named value is reported by `run.tap` under the path of its Hugging
Face module. Dimensions are those of `reference/shapes.py`.

What is particular to GPT-2: a position is a learned vector, added to that of the token, and there
are only so many of them; norms take the mean away and add a bias; one projection makes queries,
keys and values; every projection has a bias; the MLP is not gated; the head is the embedding table.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3;
`modeling_gpt2.py` of transformers.
"""

from collections.abc import Iterator

from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Hidden, Queries, Tokens


def attention(run: Run, x: Hidden, layer: int, mask: Array) -> Hidden:
    """Let every token gather from the tokens before it."""
    ops, config, path = run.ops, run.checkpoint.config, f"transformer.h.{layer}.attn"
    fused = run.linear(x, f"{path}.c_attn")  # (B, L, 3*H*D)
    queries, keys, values = (heads(run, fused, block) for block in range(3))  # (B, H, L, D)
    keys, values = run.cache.update(ops, layer, keys, values)  # (B, H, S, D)

    scale = config.attention_scale(layer)
    context = run.attended(queries, keys, values, mask, path, scale=scale)  # (B, H, L, D)
    context = run.tap(f"{path}.context", ops.merge_heads(context))  # (B, L, H*D)
    return run.linear(context, f"{path}.c_proj")


def heads(run: Run, fused: Array, block: int) -> Queries:
    """Take the queries (block 0), the keys (1) or the values (2), and cut them into heads."""
    columns = run.ops.column_block(fused, block=block, blocks=3)
    count = run.checkpoint.config.num_attention_heads
    return run.ops.heads_first(run.ops.split_heads(columns, heads=count))


def feed_forward(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let every token work on what it gathered."""
    path = f"transformer.h.{layer}.mlp"
    exact = run.checkpoint.config.activation_function == "gelu"
    gelu = run.ops.gelu_erf if exact else run.ops.gelu_tanh
    inner = gelu(run.linear(x, f"{path}.c_fc"))  # (B, L, F)
    return run.linear(run.tap(f"{path}.act", inner), f"{path}.c_proj")


def block(run: Run, x: Hidden, layer: int, mask: Array) -> Hidden:
    """Attend and think, each on a normalised copy, each added to the stream."""
    path = f"transformer.h.{layer}"
    attended = attention(run, run.layer_norm(x, f"{path}.ln_1"), layer, mask)
    x = run.tap(f"{path}.residual", run.ops.add(x, attended))
    thought = feed_forward(run, run.layer_norm(x, f"{path}.ln_2"), layer)
    return run.tap(path, run.ops.add(x, thought))


def head(run: Run, x: Hidden) -> Array:
    """Score every token of the vocabulary: (B, L, E) -> (B, L, V)."""
    if run.wanted is not None:
        x = run.ops.take_rows(x, run.wanted)  # (B, N, E)
    x = run.layer_norm(x, "transformer.ln_f")
    tied_to = "transformer.wte" if run.checkpoint.config.tie_word_embeddings else None
    logits = run.unembedded(x, tied_to)
    return run.tap("logits", logits)


def stages(run: Run, tokens: Tokens) -> Iterator[tuple[str, Array]]:
    """Yield the stream after the embeddings, after each layer, and the logits, as they are made."""
    embedded = run.tap("transformer.wte", run.looked_up(tokens, "transformer.wte"))
    placed = run.tap("transformer.wpe", run.looked_up(run.positions, "transformer.wpe"))
    # The module is a dropout, which does nothing here: it is where the stream first has a name.
    x = run.tap("transformer.drop", run.ops.add(embedded, placed))
    yield "transformer.drop", x

    mask = run.ops.causal_mask(run.places, run.keys_of("full_attention"), window=None)
    for layer in range(run.checkpoint.config.n_layer):
        x = block(run, x, layer, mask)
        yield f"transformer.h.{layer}", x
    yield "logits", head(run, x)
