"""Routers in float32 of ports in half precision are no bugs. By law: scores are rounded last."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import WITNESSES, explained, port

ROUTER, LENGTH = "model.layers.1.mlp", 60
SAID = "computed of finer scores than those that were dumped"


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    """Return a model whose routers' scores are large, so that they round coarsely."""
    folder = tmp_path_factory.mktemp("routed") / "large"
    shutil.copytree(WITNESSES / "qwen3_moe/separate", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{ROUTER}.gate.weight"] *= 6
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def in_float32(name, dtype, bugs=()):
    """Return a port whose router computes in float32, its scores and weights rounded behind it."""

    def wide(call, graph):
        if call.place == "mlp.gate":
            return call.replaced(scores)
        rounds = call.op == "top_k_routing"
        return call.followed(lambda ops, value: value.astype(kind)) if rounds else None

    def scores(ops, x, weight, *bias, **options):
        return x.astype(np.float32) @ np.asarray(weight).astype(np.float32).T

    kind = dtype_named(dtype)
    taps = port(name, [*bugs, wide], level="taps", dtype=dtype, length=LENGTH)
    return {tap: value.astype(kind) for tap, value in taps.items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_port_is_clean_and_it_is_said(name, dtype):
    found = explained(name, in_float32(name, dtype), length=LENGTH)
    assert (found.verdict, found.faults) == ("clean", [])
    assert sum(SAID in line for line in found.conventions) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights[0, 3] * 1.02,  # of a token
        lambda weights: weights[0, 3][::-1],
        lambda weights: weights[0, 2],  # those of the token before
    ],
)
def test_other_weights_of_a_token_are_wrong(name, change, dtype):
    taps = in_float32(name, dtype)
    taps[f"{ROUTER}.routing"][0, 3] = change(taps[f"{ROUTER}.routing"])
    found = explained(name, taps, (), length=LENGTH)
    assert f"{ROUTER}.routing" in {one.tap for one in found.unexplained}
    assert not any(SAID in line for line in found.conventions)


def test_scores_that_are_wrong_are_no_finer_ones(name):
    """What the port went on with is right, and what it has under their name is not."""
    taps = in_float32(name, "bfloat16")
    taps[f"{ROUTER}.gate"] = (taps[f"{ROUTER}.gate"] * np.float32(1.03)).astype("bfloat16")
    found = explained(name, taps, (), length=LENGTH)
    assert f"{ROUTER}.gate" in {one.tap for one in found.unexplained}
    assert not any(SAID in line for line in found.conventions)


@pytest.mark.parametrize("bug", ["moe-renorm-missing", "moe-selects-lowest"])
def test_a_bug_of_a_router_in_float32_is_wrong(name, bug):
    found = explained(name, in_float32(name, "bfloat16", [bug]), length=LENGTH)
    assert found.verdict != "clean" and not any(SAID in line for line in found.conventions)
