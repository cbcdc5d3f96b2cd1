"""Dumps of transformers under torch.autocast: right ones are clean, and bugs are named. By witness.

The stream and the norms are float32 there, products bfloat16 or float16.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep import parity, reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from tests.proof import builds, ports
from tests.witnesses import build

LAYERS = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "logits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    build.settle()
    return builds.make("qwen3", tmp_path_factory.mktemp("build"), seed=0)


@torch.no_grad()
def dumped(folder, half, *, activation=None):
    """Return what a port dumps of its layers, all stored as float32, and nothing said of it."""
    port = ports.load(folder, dtype="float32")
    for layer in port.outer.model.layers:
        layer.mlp.act_fn = activation or layer.mlp.act_fn
    tokens = builds.tokens(1, folder, length=20)[0].tolist()
    lower = torch.autocast("cpu", getattr(torch, half))
    with parity.capture.torch(port.outer) as dump, lower:
        port.outer(torch.tensor([tokens]))
    taps = {name: dump.read(name).astype(np.float32) for name in LAYERS}
    shapes = {name: value.shape for name, value in taps.items()}
    return Dump(Path("port"), shapes, taps.__getitem__, {"tokens": json.dumps(tokens)})


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_right_port_is_clean_in_the_half_of_its_products(folder, half):
    found = explain(reference.load(folder), dumped(folder, half))
    assert (found.verdict, found.dtype) == ("clean", half)
    assert any(f"products are in {half}" in line for line in found.conventions)


def test_a_bug_beside_is_named(folder):
    dump = dumped(folder, "bfloat16", activation=torch.nn.GELU())
    found = explain(reference.load(folder), dump)
    assert [one.id for one in found.faults] == ["act-silu-vs-gelu"]
    assert (found.unexplained, found.dtype) == ([], "bfloat16")
