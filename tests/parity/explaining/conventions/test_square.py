"""Keys whose tokens are last, in a prompt as long as a head is wide: values tell. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import Taps, explained, graph_of, ids, model_of, port, rewrite_of

NAME, WIDTH = "models/sliding_bfloat16", 16
FLOAT32 = np.dtype(np.float32)


def keys(length: int, bug: str | None = None) -> Taps:
    """Return the turned keys (B, G, L, D) of a port, in another order of sums than the oracle's."""
    model, graph = model_of(NAME), graph_of(NAME, length)
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    changed = {c.number: rewrite_of(bug)(c, graph) for c in graph.calls} if bug else {}
    wrong = {number: call for number, call in changed.items() if call is not None}
    taps = {tap: n for tap, n in graph.taps.items() if tap.endswith("k_rope")}
    return {tap: run.target(number, wrong) for tap, number in taps.items()}


def with_tokens_last(some: Taps) -> Taps:
    return {tap: np.ascontiguousarray(value.swapaxes(-1, -2)) for tap, value in some.items()}


@pytest.mark.parametrize("length", [WIDTH, WIDTH + 3])
@pytest.mark.parametrize("heads", ["batch", "no batch"])
def test_keys_with_their_tokens_last_are_right(length, heads):
    assert model_of(NAME).config.head_dim == WIDTH
    turned = with_tokens_last(keys(length))
    turned = turned if heads == "batch" else {tap: value[0] for tap, value in turned.items()}
    found = explained(NAME, port(NAME, length=length) | turned, length=length)
    assert found.verdict == "clean" and found.compared > len(turned)
    told = [line for line in found.conventions if "k_rope has its tokens last" in line]
    assert len(told) == (len(turned) if length == WIDTH else 0)


@pytest.mark.parametrize("length", [WIDTH, WIDTH + 3])
def test_keys_that_are_wrong_beside_are_wrong_still(length):
    bug = "rope-sign-flipped"
    wrong = port(NAME, [bug], length=length) | keys(length, bug)
    assert ids(explained(NAME, wrong, length=length)) == {bug}


def test_right_keys_are_not_turned():
    found = explained(NAME, port(NAME, length=WIDTH) | keys(WIDTH), length=WIDTH)
    assert found.verdict == "clean" and not any("last" in line for line in found.conventions)
