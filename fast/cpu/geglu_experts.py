from lockstep.fast.cpu.experts import gated_experts
from lockstep.fast.cpu.geglu import geglu
from lockstep.fast.shapes import Hidden, Narrowing, Routing, Widening


def geglu_experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing, *, per_token: int
) -> Hidden:
    """Run each token through its experts, which gate with a GELU, and sum their results.

    Differs from `reference.ops.geglu_experts`: as `experts` does, and `gelu_tanh`.
    """
    return gated_experts(x, routing, gate, up, down, per_token=per_token, gated=geglu)
