"""Layers for one token in one go, of which some matrices are not like the others."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lockstep.fast.model import load
from lockstep.parity.noise.random_checkpoint import packed, safetensors
from lockstep.reference.checkpoint.adapters import Adapter
from tests.fast.kernels import test_layers as usual

many, qwen3 = usual.many, usual.qwen3
LAYERS = range(usual.WIDE["num_hidden_layers"])


def mixed(folder, name, wide):
    """Write a checkpoint in codes, of which some projections have 3 bits."""
    usual.written(folder, name, "float32")
    tensors = load(folder, backend="cpu").weights
    paths = [f"model.layers.{layer}.{one}" for layer in LAYERS for one in wide]
    usually, three = packed(tensors, usual.AS_THEY_LIE), packed(tensors, 3)
    some = tuple(f"{path}." for path in paths)
    told = json.loads((folder / "config.json").read_text())
    told["quantization"] = {"group_size": 32, "bits": usual.AS_THEY_LIE}
    told["quantization"] |= {path: {"group_size": 32, "bits": 3} for path in paths}
    both = {name: (three if name.startswith(some) else usually)[name] for name in usually}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "model.safetensors").write_bytes(safetensors(both))
    return folder


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_projections_that_are_stored_in_two_ways(tmp_path, name, many):
    """By law: each is a product of its own, as by operations; qwen2 has biases."""
    path = mixed(tmp_path, name, ["self_attn.v_proj", "mlp.up_proj"])
    model = load(path, backend="cpu")
    assert not model.joined
    usual.assert_alike(usual.steps(model), usual.heard(model))
    assert many == [0] + [3] * 5


def test_an_adapter_of_one_projection_alone(qwen3, many):
    """By law: all goes by operations, and the adapter is in it."""
    model = load(qwen3, backend="cpu")
    path, rng = "model.layers.1.self_attn.o_proj", np.random.default_rng(0)
    outputs, inputs = model.weights[f"{path}.weight"].shape
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((4, inputs), (outputs, 4)))
    adapted = model.with_adapter(None)
    one = Adapter(a=a, b=b, scale=0.5, magnitude=None)
    adapted.adapters = replace(adapted.adapters, modules={path: one})
    found = usual.steps(adapted)
    assert not many
    usual.assert_alike(found, usual.heard(adapted))
    assert not np.array_equal(found[3], usual.steps(model)[3])
