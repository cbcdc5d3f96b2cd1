"""A forward pass that dumps its taps as it goes: python forward.py out.safetensors

The same pass stands here in C++, Rust, Elixir and Swift.
"""

import sys
from math import sqrt

# In a port, which has a copy of the writer: from lockstep_dump import TraceWriter
from lockstep.parity.writers.lockstep_dump import TraceWriter

VOCABULARY, WIDTH, EPS = 5, 4, 1e-6
TABLE = [[((7 * i + 3 * j) % 11 - 5) / 8 for j in range(WIDTH)] for i in range(VOCABULARY)]
GAIN = [1 + j / 4 for j in range(WIDTH)]
HEAD = [[((5 * i + 2 * j) % 7 - 3) / 4 for j in range(WIDTH)] for i in range(VOCABULARY)]


def norm(row):
    scale = 1 / sqrt(sum(x * x for x in row) / WIDTH + EPS)
    return [x * scale * gain for x, gain in zip(row, GAIN, strict=True)]


def linear(row):
    return [sum(x * w for x, w in zip(row, weights, strict=True)) for weights in HEAD]


def forward(tokens, trace):
    rows = [TABLE[token] for token in tokens]
    trace("model.embed_tokens", rows)
    rows = [norm(row) for row in rows]
    trace("model.norm", rows)
    rows = [linear(row) for row in rows]
    trace("logits", rows)
    return rows


def main(path):
    tokens = [3, 1, 4, 1]
    with TraceWriter(path, backend="python", dtype="float32", tokens=tokens) as dump:

        def trace(name, rows, step=""):
            flat = [number for row in rows for number in row]
            dump.add(step + name, flat, shape=(1, len(rows), len(rows[0])))

        last = forward(tokens, trace)[-1]
        decoded = last.index(max(last))
        forward([decoded], lambda name, rows: trace(name, rows, "step.1/"))
        dump.say(decoded=[decoded])


if __name__ == "__main__":
    main(sys.argv[1])
