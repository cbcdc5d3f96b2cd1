"""The first token's logits depend on the first token alone: it can see nothing else."""

import numpy as np

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import Finding, not_tried

LAW = "the first token by itself"
POINTS_TO = (
    "a mask that is strict (j < i for j <= i): the first row then sees no key, or all of them",
    "no causal mask at all",
    "a BOS token that is put in front where one is there, or an output shifted by one",
)


def check(bench: Bench) -> Finding:
    tokens = bench.tokens
    if len(tokens) < 2:
        return not_tried(LAW, "--length 1 has no other token")
    right = bench.run(tokens[:1])[0]
    other = bench.run(np.concatenate([tokens[:1], bench.others(len(tokens) - 1, than=tokens[1:])]))
    return bench.judged(
        LAW,
        "ran it alone, and before other tokens",
        {
            "before the rest of the prompt": (bench.base[:1], right),
            "before other tokens": (other[0, :1], right),
        },
        POINTS_TO,
    )
