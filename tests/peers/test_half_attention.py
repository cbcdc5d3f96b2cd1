"""Attention in half precision as torch has it: which of the ways that are known gives its bits."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lockstep.parity.graph import Value
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

HEADS, LENGTH, WIDTH = 4, 40, 24  # a head whose scale is no power of two
AT = np.arange(LENGTH)[None]
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def attention(dtype, given, backend):
    queries, keys, values = (one.to(dtype) for one in given)
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=SEEN
        )


def eager(dtype, given, _):
    """The eager attention of transformers, in the port's dtype but for the softmax."""
    queries, keys, values = (one.to(dtype) for one in given)
    scores = (queries @ keys.transpose(-1, -2)) * WIDTH**-0.5
    scores = scores.masked_fill(~SEEN, torch.finfo(dtype).min)
    return scores.softmax(-1, dtype=torch.float32).to(dtype) @ values


WAYS = {
    "": (attention, SDPBackend.MATH, 0.01),
    ", powers too": (attention, SDPBackend.FLASH_ATTENTION, 0.3),
    ", each operation": (eager, None, 0.01),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_bits_of_torch(name, way):
    """Other bits than a share of them are the same; none of the other ways has as many."""
    torch.manual_seed(0)
    given = torch.randn(3, 1, HEADS, LENGTH, WIDTH)
    compute, backend, most = WAYS[way]
    port = compute(getattr(torch, name), given, backend).float().numpy()
    graph = graph_of(
        *(call(n, "scale", x.double().numpy(), by=1.0) for n, x in enumerate(given)),
        call(3, "causal_mask", AT, AT, window=None),
        call(4, "attention_scores", Value(0), Value(1), scale=WIDTH**-0.5),
        call(5, "softmax", Value(4), Value(3), masked_row="uniform"),
        call(6, "attention_context", Value(5), Value(2), Value(3)),
    )
    other = {
        one: np.mean(wrong(graph, variant("attention-in-half", f"in {name}{one}")) != port)
        for one in WAYS
    }
    assert other[way] < most
    assert min(other, key=lambda one: other[one]) == way
