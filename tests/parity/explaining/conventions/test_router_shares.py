"""Probabilities of all experts under the name of a router's scores are no bug. By law."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, ids, port

GATES = {"qwen3_moe/separate": "mlp.gate", "gemma4/sparse": "router.proj"}
SAID = "right as the softmax of the scores"


def with_shares(name, way, bugs=(), *, level="taps", dtype="float32"):
    """Return a port's taps, its routers' scores changed in a way."""
    taps = port(name, bugs, level=level, dtype=dtype)
    for tap in (tap for tap in taps if tap.endswith(GATES[name])):
        taps[tap] = way(taps[tap].astype(np.float32)).astype(taps[tap].dtype)
    return taps


def softmax(scores, axis=-1):
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def told(found):
    return sum(SAID in line for line in found.conventions)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["taps", "modules"])
@pytest.mark.parametrize("name", GATES)
def test_a_right_port_is_clean_and_it_is_said(name, level, dtype):
    found = explained(name, with_shares(name, softmax, level=level, dtype=dtype))
    assert (found.verdict, found.faults, told(found)) == ("clean", [], 1)


@pytest.mark.parametrize("name", GATES)
def test_a_bug_behind_them_is_named(name):
    found = explained(name, with_shares(name, softmax, ["moe-renorm-missing"]))
    assert ids(found) == {"moe-renorm-missing"} and told(found) == 1


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize(
    "way",
    [
        lambda scores: softmax(scores * 1.01),
        lambda scores: softmax(scores[..., ::-1]),
        lambda scores: softmax(scores, axis=1),
        lambda scores: 1 / (1 + np.exp(-scores)),
    ],
)
def test_other_probabilities_are_wrong(name, way):
    found = explained(name, with_shares(name, way), ())
    assert found.verdict == "unknown" and not told(found)


@pytest.mark.parametrize("level", ["taps", "modules"])
@pytest.mark.parametrize("name", GATES)
def test_a_port_that_chooses_by_them_as_scores_is_wrong(name, level):
    def twice(call, graph):
        made = call.op == "linear" and call.place.endswith(GATES[name])
        return call.followed(lambda ops, scores: softmax(scores)) if made else None

    found = explained(name, port(name, [twice], level=level), ())
    assert found.verdict == "unknown" and not told(found)
