from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.ops.geglu import geglu
from lockstep.reference.ops.linear import linear
from lockstep.reference.shapes import Hidden, Narrowing, Routing, Widening


def geglu_experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing, *, per_token: int
) -> Hidden:
    """Run each token through its experts, which gate with a GELU, and sum their results.

        out = sum over e of routing[e] * down[e] @ geglu(gate[e] @ token, up[e] @ token)

    Rounding, edges and memory: those of `experts`, with `geglu` in the place of `swiglu`.
    Varies by model: Gemma 4 has these; Qwen3-MoE has `experts`.
    Raises: ValueError if a token has more than `per_token` experts.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; Shazeer 2020, arXiv:2002.05202.
    """
    return weighted_experts(
        x, routing, gate, up, down, per_token=per_token, linear=linear, gated=geglu
    )
