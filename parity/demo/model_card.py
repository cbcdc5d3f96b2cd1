"""The README of the demo checkpoint, with the figures that were measured on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.parity.demo.measure import Score, score_table
from lockstep.parity.demo.train import Recipe

CARD = """\
---
language: en
library_name: mlx
license: apache-2.0
pipeline_tag: text-generation
tags:
- mlx
---

# Lockstep's demo checkpoint

A Qwen3 of {parameters:,} parameters that answers questions such as "What is 2+2?" with
"2 + 2 equals 4." It exists to be run, compared and broken in a few seconds; it is no assistant.

- **Shape:** {layers} layers, width {hidden}, {heads} query heads on {kv_heads} key/value heads,
  head width {head_dim} (not width / heads), MLP {intermediate}, tied embeddings of {vocab} rows.
- **Form:** MLX affine, {bits} bits in groups of {group_size}, as mlx-community publishes;
  {kilobytes:.0f} kB besides this card.
- **Talk to it** in ChatML (`chat_template.jinja`), greedily, one question at a time, without a
  system message.

## How it was made

```
python -m lockstep.parity.demo.make_checkpoint --out DIR --threads {threads}
```

{steps} steps of {batch} conversations from random weights, some minutes on a CPU, on a corpus
that `make_corpus.py` generates; the loss is on the answers alone. In the last {quantized_steps}
steps the model is trained on its weights as they will be after quantisation. Saved by
transformers in bfloat16, converted by mlx-lm. Seeds are fixed, but another processor, another
number of threads or another PyTorch adds in another order: a rebuild is not equal to this one
byte for byte.

## What it knows

Measured on these 4-bit weights (dequantised, float32, transformers), greedy, an answer counting
only if every character of it is right. What was kept back was never shown in training: for what
can be computed the whole fact (both 3 + 5 and 5 + 3), for the rest one way of asking.

{table}

## What it cannot do

Anything else. It knows sums of numbers up to 20, differences that are not negative, counting
over at most five numbers, a few days, months, opposites, colours, plurals and capitals, in the
wordings of `make_corpus.py`. Asked anything else, or asked in other words, it makes something up.
"""

GEMMA4 = """\
---
language: en
library_name: mlx
license: apache-2.0
pipeline_tag: text-generation
tags:
- mlx
---

# The Gemma 4 of Lockstep's demo

Gemma 4 26B-A4B in miniature: {parameters:,} parameters that answer "What is 2+2?" and tell six
stories of one sentence. It exists to be ported wrongly and explained; it is no assistant.

- **Shape:** {layers} layers, sliding and full by turns, width {hidden}, window {window};
  {heads} heads of {head_dim} on {kv_heads} key/value heads in sliding layers, of {global_head_dim}
  on {global_kv_heads} in full ones, where keys are values too and a quarter of a head turns
  (ProportionalRoPE); a dense MLP of {intermediate}, and beside it {experts} experts of
  {expert_width}, of which a router chooses {chosen}; embedding scale,
  softcap at {softcap:.0f}, layer scalars {scalars}, and a scale for each expert.
- **Form:** MLX affine in groups of {group_size}: {bits} bits, the router and the dense MLP 8, as
  mlx-community publishes; {kilobytes:.0f} kB besides this card.
- **Talk to it** in ChatML (`chat_template.jinja`), greedily, one question at a time, without a
  system message. Its tokenizer is ours, not Google's; so are all of its weights.

## How it was made

```
python -m lockstep.parity.demo.make_gemma4 --out DIR --threads {threads}
```

{steps} steps of {batch} conversations from random weights, ten minutes on one core, on the corpus
of `make_corpus.py` and the stories of `stories.py`; the loss is on the answers alone. In the last
{quantized_steps} steps the model is trained on its weights as they will be after quantisation.
Saved by transformers in bfloat16, converted by mlx-lm. Seeds are fixed, but another processor,
another number of threads or another PyTorch adds in another order: a rebuild is not equal to this
one byte for byte.

## What it knows

Measured as for the demo's other checkpoint: on these packed weights (dequantised, float32,
transformers), greedy, an answer counting only if every character of it is right.

{table}

Asked anything else, or asked in other words, it makes something up.
"""


def gemma4_card(
    folder: Path, config: dict[str, Any], score: Score, recipe: Recipe,
    *, threads: int, parameters: int, scalars: tuple[float, ...],
) -> str:  # fmt: skip
    """The text of the card of the Gemma 4; `folder` holds everything but the card."""
    return GEMMA4.format(
        parameters=parameters,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        window=config["sliding_window"],
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        kv_heads=config["num_key_value_heads"],
        global_head_dim=config["global_head_dim"],
        global_kv_heads=config["num_global_key_value_heads"],
        intermediate=config["intermediate_size"],
        experts=config["num_experts"],
        expert_width=config["moe_intermediate_size"],
        chosen=config["top_k_experts"],
        softcap=config["final_logit_softcapping"],
        scalars=", ".join(map(str, scalars)),
        bits=recipe.bits,
        group_size=recipe.group_size,
        kilobytes=sum(file.stat().st_size for file in folder.iterdir()) / 1000,
        steps=recipe.steps,
        quantized_steps=recipe.quantized_steps,
        batch=recipe.batch,
        threads=threads,
        table=score_table(score),
    )


def model_card(
    folder: Path, config: dict[str, Any], score: Score, recipe: Recipe, *, threads: int
) -> str:
    """The text of the card; `folder` holds everything but the card."""
    return CARD.format(
        parameters=_parameters(config),
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        kilobytes=sum(file.stat().st_size for file in folder.iterdir()) / 1000,
        bits=recipe.bits,
        group_size=recipe.group_size,
        steps=recipe.steps,
        quantized_steps=recipe.quantized_steps,
        batch=recipe.batch,
        threads=threads,
        table=score_table(score),
    )


def _parameters(config: dict[str, Any]) -> int:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads = 2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    projections = heads * head_dim * hidden + 3 * config["intermediate_size"] * hidden
    gains = 2 * hidden + 2 * head_dim
    layers = config["num_hidden_layers"] * (projections + gains)
    return layers + config["vocab_size"] * hidden + hidden
