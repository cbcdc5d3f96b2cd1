from lockstep.reference.ops.gelu_tanh import gelu_tanh
from lockstep.reference.ops.multiply import multiply
from lockstep.reference.shapes import Hidden


def geglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the GELU of another: `multiply(gelu_tanh(gate), up)`.

        out = gelu_tanh(gate) * up

    Rounding: twice, after the GELU and after the product, as PyTorch rounds the two steps.
    Edges: those of `gelu_tanh` and `multiply`.
    Varies by model: Gemma gates this way, Llama and Qwen with `swiglu`.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.
    """
    return multiply(gelu_tanh(gate), up)
