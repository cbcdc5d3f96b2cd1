from lockstep.reference.ops.multiply import multiply
from lockstep.reference.ops.silu import silu
from lockstep.reference.shapes import Hidden


def swiglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the SiLU of another: `multiply(silu(gate), up)` as one operation.

        out = silu(gate) * up

    Rounding: twice, after the SiLU and after the product, as PyTorch rounds the two steps.
    Edges: those of `silu` and `multiply`.
    Varies by model: which of the two is gated decides everything; Qwen and Llama gate `gate_proj`.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.
    """
    return multiply(silu(gate), up)
