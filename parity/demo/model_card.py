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
