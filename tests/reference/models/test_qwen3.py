"""Qwen3 against the same model written a second time, as plain loops over Python numbers.

By loop: one token, one head, one output at a time in float64, from the paper and the config, with
no operation of the project. The weights are those of committed witnesses.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from lockstep.reference import load
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.tolerances import assert_close

MODELS = Path(__file__).parents[2] / "witnesses" / "models"
TOKENS = [7, 90, 7, 12, 0]


class Loops:
    """A Qwen3 forward pass over one row of tokens, with the stream after each layer."""

    def __init__(self, folder):
        self.checkpoint = open_checkpoint(folder)
        self.config = self.checkpoint.config

    def weight(self, name):
        return self.checkpoint.tensor(name).astype(np.float64).tolist()

    def linear(self, x, path):
        bias = self.weight(f"{path}.bias") if self.checkpoint.has(f"{path}.bias") else None
        out = [
            sum(a * b for a, b in zip(x, row, strict=True)) for row in self.weight(f"{path}.weight")
        ]
        return out if bias is None else [a + b for a, b in zip(out, bias, strict=True)]

    def norm(self, x, path):
        root = math.sqrt(sum(v * v for v in x) / len(x) + self.config.rms_norm_eps)
        return [v / root * g for v, g in zip(x, self.weight(f"{path}.weight"), strict=True)]

    def turned(self, head, position):
        half = len(head) // 2
        out = list(head)
        for j in range(half):
            angle = position * self.config.rope_theta ** (-2 * j / len(head))
            out[j] = head[j] * math.cos(angle) - head[j + half] * math.sin(angle)
            out[j + half] = head[j + half] * math.cos(angle) + head[j] * math.sin(angle)
        return out

    def heads(self, x, path, norm, position):
        flat, width = self.linear(x, path), self.config.head_dim
        cut = [flat[i : i + width] for i in range(0, len(flat), width)]
        if norm is None:
            return cut
        return [self.turned(self.norm(head, norm), position) for head in cut]

    def attention(self, stream, layer):
        path, width = f"model.layers.{layer}.self_attn", self.config.head_dim
        sides = [
            [self.heads(x, f"{path}.{n}_proj", f"{path}.{n}_norm" if n != "v" else None, i)
             for i, x in enumerate(stream)]
            for n in "qkv"
        ]  # fmt: skip
        queries, keys, values = sides
        share = self.config.num_attention_heads // self.config.num_key_value_heads
        sliding = self.config.layer_types[layer] == "sliding_attention"
        out = []
        for i, heads in enumerate(queries):
            seen = [j for j in range(i + 1) if not sliding or i - j < self.config.sliding_window]
            joined = []
            for h, query in enumerate(heads):
                scores = [
                    sum(a * b for a, b in zip(query, keys[j][h // share], strict=True))
                    / math.sqrt(width)
                    for j in seen
                ]
                powers = [math.exp(s - max(scores)) for s in scores]
                joined += [
                    sum(p * values[j][h // share][d] for p, j in zip(powers, seen, strict=True))
                    / sum(powers)
                    for d in range(width)
                ]
            out.append(self.linear(joined, f"{path}.o_proj"))
        return out

    def thought(self, x, layer):
        path = f"model.layers.{layer}.mlp"
        gate, up = self.linear(x, f"{path}.gate_proj"), self.linear(x, f"{path}.up_proj")
        inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
        return self.linear(inner, f"{path}.down_proj")

    def forward(self, tokens):
        table = self.weight("model.embed_tokens.weight")
        stream = [table[token] for token in tokens]
        for layer in range(self.config.num_hidden_layers):
            path = f"model.layers.{layer}"
            normed = [self.norm(x, f"{path}.input_layernorm") for x in stream]
            stream = [
                added(x, y) for x, y in zip(stream, self.attention(normed, layer), strict=True)
            ]
            normed = [self.norm(x, f"{path}.post_attention_layernorm") for x in stream]
            stream = [added(x, self.thought(y, layer)) for x, y in zip(stream, normed, strict=True)]
        head = "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head"
        return [self.linear(self.norm(x, "model.norm"), head) for x in stream]


def added(x, y):
    return [a + b for a, b in zip(x, y, strict=True)]


@pytest.mark.parametrize(
    "name", ["tied_bfloat16", "untied_float32", "biased_float16", "sliding_bfloat16"]
)
def test_follows_the_loops(name):
    """By loop, in float64: tied and untied, with biases, with a window."""
    expected = np.array([Loops(MODELS / name).forward(TOKENS)])
    logits = load(MODELS / name, dtype="float64").forward([TOKENS])
    assert_close(logits, expected, kind="model")
