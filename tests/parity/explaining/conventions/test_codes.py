"""A code of 8 bits that fell to the other side of its step is no bug. By law, on ports of our own.

That llama.cpp's are such is tested on its own runs, in tests/peers/test_capture_llama_cpp.py.
"""

import numpy as np
import pytest

from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import explained, graph_of, ids, is_of, model_of, rewrite_of
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME, BLOCK = "gguf/qwen3_tied.gguf", 32
MLP = "model.layers.0.mlp"
FLOAT32 = dtype_named("float32")


def packing_port(codes: dict[int, float]) -> dict[str, np.ndarray]:
    """Return what a port dumps that packs to 8 bits, tokens of one product being some codes off."""
    model, graph = model_of(NAME), graph_of(NAME)
    rewrite = rewrite_of("activations-in-8-bits[32 to a scale]")
    calls = {call.number: new for call in graph.calls if (new := rewrite(call, graph)) is not None}
    product = graph.taps[f"{MLP}.down_proj"]
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    hidden = run.target(graph.taps[f"{MLP}.act_fn"], calls)
    hidden = hidden * run.target(graph.taps[f"{MLP}.up_proj"], calls)
    column = dense(ops, model.checkpoint.tensor(f"{MLP}.down_proj.weight"))[:, 0]
    off = np.zeros(graph.shapes[product], np.float32)
    for token, count in codes.items():
        step = np.abs(hidden[0, token, :BLOCK]).max() / 127
        off[0, token] = count * step * column
    calls[product] = calls[product].followed(lambda ops, value: value + off)
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    every = {tap: run.target(number, calls) for tap, number in graph.taps.items()}
    return {tap: value for tap, value in every.items() if is_of("modules", tap)}


def told(found) -> list[str]:
    return [line for line in found.conventions if "at a step of 8 bits" in line]


def test_all_codes_are_the_same():
    found = explained(NAME, packing_port({}))
    assert (found.verdict, told(found)) == ("clean", [])


@long
@pytest.mark.parametrize("codes", [{7: 1.0}, {3: -1.0, 11: 1.0, 19: 1.0}])
def test_a_code_that_is_one_off_is_told_and_no_bug(codes):
    found = explained(NAME, packing_port(codes))
    assert (found.verdict, ids(found), found.unexplained) == ("clean", set(), [])
    assert told(found) == [
        f"{len(codes)} token{'s' * (len(codes) > 1)} of {MLP}.down_proj at a step of 8 bits: "
        "either side is right, and proves nothing"
    ]


@long
@pytest.mark.parametrize(
    "codes", [{7: 60.0}, dict.fromkeys(range(0, 20, 2), 1.0)], ids=["far", "many"]
)
def test_what_no_rounding_does_stays_unknown(codes):
    """One token that is off by more than all its packing; half of all tokens."""
    found = explained(NAME, packing_port(codes))
    assert found.verdict == "unknown" and told(found) == []
    assert [one.tap for one in found.unexplained] == [f"{MLP}.down_proj"]
