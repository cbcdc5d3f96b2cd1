"""What goes wrong inside of the MLP."""

from dataclasses import replace

import numpy as np

from lockstep.parity.faults.activations import (
    ANY,
    EXPERTS,
    GELU,
    activated,
    erf_share,
    gelu_erf,
    gelu_tanh,
    none_at_all,
    overflowing,
    quick,
    relu,
    sigmoid_share,
    silu,
    squared_relu,
    tanh_share,
)
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import either, instead, rewrite
from lockstep.parity.faults.tensors import dense, renamed
from lockstep.parity.graph import Call, Derived, Graph, Value, again
from lockstep.reference.checkpoint.stack import Stack

GATE, UP = 2, 3  # the experts' stacks among their inputs
MLP = r"mlp\..*"


@rewrite("multiply", MLP)
def both_activated(call: Call, graph: Graph) -> Call | None:
    """Activate what the gate is multiplied by, as the gate is, with whatever is wrong with that."""
    source = graph.source(call, 0)
    return call.with_input(1, again(source, call.inputs[1])) if source.op in ANY else None


@rewrite("multiply", MLP)
def activated_behind(call: Call, graph: Graph) -> Call | None:
    """Multiply first, and activate the product, with whatever is wrong with that."""
    source = graph.source(call, 0)
    if source.op not in ANY:
        return None
    gate_and_up = (source.inputs[0], call.inputs[1])
    product = Derived(lambda ops, gate, up: ops.multiply(gate, up), gate_and_up)
    return replace(call.with_input(0, again(source, product)), idle=True)


@rewrite(EXPERTS)
def experts_exchanged(call: Call, graph: Graph) -> Call:
    gate, up = call.inputs[GATE], call.inputs[UP]
    return call.with_input(GATE, up).with_input(UP, gate)


@rewrite(("multiply", *ANY))
def outputs_exchanged(call: Call, graph: Graph) -> Call | None:
    """Let the activation go over what `up_proj` gives, and multiply by what `gate_proj` gives."""
    product = call if call.op == "multiply" else product_of(call, graph)
    if product is None or not of_mlp(product, graph):
        return None
    gate, up = graph.source(product, 0).inputs[0], graph.calls[product.number].inputs[1]
    return call.with_input(1, gate) if call.op == "multiply" else call.with_input(0, up)


def product_of(call: Call, graph: Graph) -> Call | None:
    takers = [graph.calls[number] for number in graph.consumers[call.number]]
    return next((taker for taker in takers if taker.op == "multiply"), None)


def of_mlp(product: Call, graph: Graph) -> bool:
    return graph.source(product, 0).place == "mlp.act_fn"


@rewrite("linear", r"mlp\.(gate|up)_proj")
def weights_exchanged(call: Call, graph: Graph) -> Call:
    return call.with_input(1, renamed(call.inputs[1], partner(call)))


def partner(call: Call) -> str:
    """Return the name of the other half's weight."""
    name = call.tensor(1) or ""
    names = ("gate_proj", "up_proj")
    mine, other = names if names[0] in name else names[::-1]
    return name.replace(mine, other)


def every_other(first: int):
    """Take every other row of two matrices that lie one behind the other."""

    def change(ops, gate, up):
        return np.concatenate([dense(ops, gate), dense(ops, up)])[first::2]

    return change


def halves_of(call: Call, graph: Graph) -> list[Value] | None:
    """Return gate and up of the module of a call, where a port makes both at once."""
    module = f"model.layers.{call.layer}.mlp"
    if module not in graph.fused:
        return None
    parts = (graph.value(f"{module}.{part}") for part in ("gate_proj", "up_proj"))
    found = [one for one in parts if one is not None]
    return found if len(found) == 2 else None


@rewrite(("multiply", *ANY))
def columns_in_turns(call: Call, graph: Graph) -> Call | None:
    """Take every other column of what a port made at once, for the gate and for what it scales."""
    halves = halves_of(call, graph)
    if halves is None or outputs_exchanged(call, graph) is None:
        return None
    mine = int(call.op == "multiply")

    def change(ops, gate, up):
        return np.concatenate([gate, up], axis=-1)[..., mine::2]

    return call.with_input(mine, Derived(change, tuple(halves)))


@rewrite(("multiply", *ANY))
def halves_exchanged(call: Call, graph: Graph) -> Call | None:
    """Exchange what a port made at once."""
    return None if halves_of(call, graph) is None else outputs_exchanged(call, graph)


@rewrite("linear", r"mlp\.(gate|up)_proj")
def rows_in_turns(call: Call, graph: Graph) -> Call | None:
    if halves_of(call, graph) is not None:
        return None
    mine, other = call.inputs[1], renamed(call.inputs[1], partner(call))
    first = "gate_proj" in (call.tensor(1) or "")
    pair = (mine, other) if first else (other, mine)
    return call.with_input(1, Derived(every_other(0 if first else 1), pair))


@rewrite(EXPERTS)
def experts_rows_in_turns(call: Call, graph: Graph) -> Call:
    def half(first):
        change = every_other(first)

        def stack(ops, gate, up):
            return Stack(gate.shape, lambda expert: change(ops, gate[expert], up[expert]))

        return Derived(stack, (call.inputs[GATE], call.inputs[UP]))

    inputs = (*call.inputs[:GATE], half(0), half(1), *call.inputs[UP + 1 :])
    return replace(call, inputs=inputs)


def missing_x() -> Rewrite:
    return either(
        activated(tanh_share, "gelu_tanh"),
        activated(erf_share, "gelu_erf"),
        activated(sigmoid_share, "silu"),
    )


FAULTS = (
    Fault(
        id="act-silu-vs-gelu",
        wrong="SiLU where a GELU belongs, or a GELU where SiLU belongs",
        right="act(gate) * up, act as the config names it",
        symptom="garbage or noisy text",
        where="mlp.act_fn",
        fix="use the activation that the config names (hidden_activation, hidden_act)",
        evidence=("huggingface/candle#2678",),
        variants={
            "silu for gelu": activated(silu, *GELU),
            "gelu (tanh) for silu": activated(gelu_tanh, "silu"),
            "gelu (erf) for silu": activated(gelu_erf, "silu"),
        },
    ),
    Fault(
        id="gelu-erf-vs-tanh",
        wrong="x (1 + erf(x / sqrt 2)) / 2",
        right="x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
        symptom="none to see",
        where="mlp.act_fn",
        fix="use the form that the config names: gelu_pytorch_tanh and gelu_new are the tanh form",
        evidence=("https://unsloth.ai/blog/gemma-bugs", "NVIDIA-NeMo/Megatron-Bridge#4661"),
        variants={
            "erf for tanh": activated(gelu_erf, "gelu_tanh"),
            "tanh for erf": activated(gelu_tanh, "gelu_erf"),
        },
    ),
    Fault(
        id="gelu-quick",
        wrong="x sigmoid(1.702 x)",
        right="the GELU that the config names",
        symptom="text a little worse",
        where="mlp.act_fn",
        fix="use the GELU itself; the sigmoid is an approximation that CLIP was trained with",
        variants={
            "for gelu": activated(quick, *GELU),
            "for silu": activated(quick, "silu"),
        },
    ),
    Fault(
        id="gelu-missing-x-factor",
        wrong="(1 + tanh(...)) / 2",
        right="x (1 + tanh(...)) / 2",
        symptom="every value is wrong",
        where="mlp.act_fn",
        fix="multiply by x",
        evidence=("tensorflow/tfjs#8224",),
        variants={"": missing_x()},
    ),
    Fault(
        id="gelu-overflow",
        wrong="tanh(u) = (e^2u - 1) / (e^2u + 1), where e^2u overflows",
        right="tanh(u) = 1 there",
        symptom="NaN",
        where="mlp.act_fn",
        fix="use a tanh that saturates, or hand x on where it is large",
        evidence=("huggingface/candle@6e25822d4",),
        variants={
            f"exponentials of {dtype}": activated(overflowing(dtype), "gelu_tanh")
            for dtype in ("float32", "float16")
        },
    ),
    Fault(
        id="swiglu-gate-up-swapped",
        wrong="gate * act(up)",
        right="act(gate) * up",
        symptom="garbage",
        where="mlp.act_fn",
        fix="activate the gate, not the other half; check the order of the helper's arguments",
        evidence=("ml-explore/mlx-lm#767", "Blaizzy/mlx-vlm#465"),
        variants={
            "in the product": either(outputs_exchanged, experts_exchanged),
            "in the weights": either(weights_exchanged, experts_exchanged),
        },
    ),
    Fault(
        id="gated-product-wrong",
        wrong="act(gate), up, act(gate) + up, act(gate) * act(up), or act(gate * up)",
        right="act(gate) * up",
        symptom="garbage",
        where="mlp.down_proj",
        fix="activate the gate alone, and multiply it by up, number by number",
        variants={
            "the gate alone": instead("multiply", lambda ops, gate, up: gate, MLP),
            "up alone": instead("multiply", lambda ops, gate, up: up, MLP),
            "added": instead("multiply", lambda ops, gate, up: ops.add(gate, up), MLP),
            "both activated": both_activated,
            "the product activated": activated_behind,
        },
    ),
    Fault(
        id="gate-up-interleaved-split",
        wrong="gate and up are the even and the odd rows of the fused matrix",
        right="gate and up are its first and its second half",
        symptom="garbage",
        where="mlp.gate_proj",
        fix="split a fused gate_up_proj in two halves; only gpt-oss interleaves them",
        evidence=("vllm-project/vllm#29273",),
        variants={"": either(rows_in_turns, columns_in_turns, experts_rows_in_turns)},
    ),
    Fault(
        id="act-name-from-wrong-field",
        wrong="the activation of another key of the config, or of a default",
        right="the activation of the key that this architecture reads",
        symptom="slightly or totally wrong text",
        where="mlp.act_fn",
        fix="read the activation from the key that this architecture reads",
        evidence=("ggml-org/llama.cpp#9085", "EricLBuehler/mistral.rs@4e66fc6b5"),
        variants={
            "relu": activated(relu, *ANY),
            "relu squared": activated(squared_relu, *ANY),
            "none": activated(none_at_all, *ANY),
        },
    ),
)
