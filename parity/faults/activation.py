"""What goes wrong inside of the MLP."""

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import either, instead

GELU = ("gelu_tanh", "gelu_erf")


def silu(ops, x):
    return ops.silu(x)


def experts_with_silu(ops, x, routing, *stacks, per_token):
    return ops.experts(x, routing, *stacks, per_token=per_token)


FAULTS = (
    Fault(
        id="act-silu-vs-gelu",
        wrong="silu(gate) * up",
        right="gelu(gate) * up",
        symptom="garbage or noisy text",
        where="mlp.act_fn",
        fix="use the activation that hidden_activation names",
        variants={
            "silu for gelu": either(instead(GELU, silu), instead("geglu_experts", experts_with_silu)),
        },
    ),
    Fault(
        id="gelu-erf-vs-tanh",
        wrong="0.5 x (1 + erf(x / sqrt 2))",
        right="0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
        symptom="none to see",
        where="mlp.act_fn",
        fix="use the tanh form",
        variants={"erf for tanh": instead("gelu_tanh", lambda ops, x: ops.gelu_erf(x))},
    ),
)
