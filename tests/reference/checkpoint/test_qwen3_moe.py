"""Qwen3-MoE's config and files: each key has an answer, and every form of experts is one stack."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

WITNESSES = Path(__file__).parents[2] / "witnesses" / "qwen3_moe"
UP = "model.layers.1.mlp.experts.up_proj.weight"


@pytest.fixture(params=["separate", "fused", "packed"])
def folder(request, tmp_path) -> Path:
    shutil.copytree(WITNESSES / request.param, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def fused(tmp_path) -> Path:
    shutil.copytree(WITNESSES / "fused", tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **keys) -> None:
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    kept = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(kept))


def rewrite(folder: Path, edit) -> None:
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path)


REFUSED = {
    "num_experts_per_tok": (7, "num_experts_per_tok=7, but num_experts=6"),
    "num_experts": (5, "must be num_experts=5"),
    "norm_topk_prob": (1, "must be true or false"),
    "decoder_sparse_step": (0, "must be a positive integer"),
    "mlp_only_layers": ([2], "must list layers from 0 to 1"),
    "moe_intermediate_size": ("24", "must be a positive integer"),
    "hidden_act": ("gelu", "must be 'silu'"),
    "head_dim": (7, "is odd: rotary embedding needs pairs"),
    "shared_expert_intermediate_size": (8, "unknown config key"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_wrong_is_refused(fused, key):
    """By hand: one line that says which key, and what it may be."""
    value, line = REFUSED[key]
    change(fused, **{key: value})
    with pytest.raises(InputError, match=line) as caught:
        open_checkpoint(fused)
    assert "\n" not in str(caught.value)


NEEDED = ("norm_topk_prob", "decoder_sparse_step", "num_experts_per_tok", "moe_intermediate_size")


@pytest.mark.parametrize("key", [*NEEDED, "head_dim", "rms_norm_eps"])
def test_a_key_that_is_missing_is_refused(fused, key):
    """By law: engines take different things where `norm_topk_prob` is absent, so nothing is."""
    change(fused, **{key: None})
    with pytest.raises(InputError, match=f"field '{key}' must be .*found nothing"):
        open_checkpoint(fused)


def test_both_spellings_of_the_number_of_experts(fused):
    """By hand: transformers 5 writes `num_local_experts`, published files `num_experts`."""
    assert "num_local_experts" in json.loads((fused / "config.json").read_text())
    assert open_checkpoint(fused).config.num_experts == 6
    change(fused, num_local_experts=None)
    with pytest.raises(InputError, match=r"field 'num_experts' must be .*found nothing"):
        open_checkpoint(fused)
    change(fused, num_experts=6)
    assert open_checkpoint(fused).config.num_experts == 6


@pytest.mark.parametrize("step, dense, sparse", [
    (1, [], [0, 1, 2, 3]), (2, [], [1, 3]), (3, [], [2]), (1, [1, 2], [0, 3]), (2, [3], [1]),
])  # fmt: skip
def test_which_layers_are_sparse(fused, step, dense, sparse):
    """By hand: every step-th layer, counted from 1, unless it is listed as dense."""
    from dataclasses import replace

    config = open_checkpoint(fused).config
    config = replace(config, decoder_sparse_step=step, mlp_only_layers=tuple(dense))
    assert [layer for layer in range(4) if config.is_sparse(layer)] == sparse


def test_every_form_is_one_stack(folder):
    """By hand: the matrix of an expert is where its form keeps it."""
    stored, checkpoint = load_file(folder / "model.safetensors"), open_checkpoint(folder)
    stack, path = checkpoint.stack(UP), "model.layers.1.mlp"
    count, inner, width = stack.shape
    assert stack.shape == checkpoint.tensor(UP).shape
    for expert in range(count):
        found = stack[expert]
        assert found.shape == (inner, width)
        if f"{path}.experts.gate_up_proj" in stored:
            expected = stored[f"{path}.experts.gate_up_proj"][expert, inner:]
        elif f"{path}.switch_mlp.up_proj.weight" in stored:
            found = found.packed
            expected = stored[f"{path}.switch_mlp.up_proj.weight"][expert]
        else:
            expected = stored[f"{path}.experts.{expert}.up_proj.weight"]
        np.testing.assert_array_equal(found, expected)


def test_bytes_are_counted_once(folder):
    """By law: the tensors of a checkpoint take as many bytes as the file has data."""
    checkpoint = open_checkpoint(folder)
    counted = sum(checkpoint.stored(name).nbytes for name in checkpoint.names)
    held = load_file(folder / "model.safetensors").values()
    assert counted == sum(value.nbytes for value in held)


def test_the_router_keeps_its_own_packing():
    """By hand: mlx-lm packs it in 8 bits, and says so."""
    checkpoint = open_checkpoint(WITNESSES / "packed")
    router = checkpoint.stored("model.layers.1.mlp.gate.weight")
    experts = checkpoint.stored(UP)
    assert (router.bits, router.group_size) == (8, 64)
    assert (experts.bits, experts.group_size, experts.shape) == (4, 32, (5, 64, 64))
    assert checkpoint.warnings == []


def test_a_missing_expert_is_named(tmp_path):
    """By hand."""
    shutil.copytree(WITNESSES / "separate", tmp_path / "model")
    name = "model.layers.1.mlp.experts.4.down_proj.weight"
    rewrite(tmp_path / "model", lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(InputError, match=f"missing '{name}'"):
        open_checkpoint(tmp_path / "model")


def test_one_expert_too_many_is_refused(tmp_path):
    """By hand."""
    shutil.copytree(WITNESSES / "separate", tmp_path / "model")
    extra = {"model.layers.1.mlp.experts.6.up_proj.weight": np.zeros((24, 32), np.float32)}
    rewrite(tmp_path / "model", lambda tensors: tensors | extra)
    with pytest.raises(InputError, match=r"unknown tensors 'model\.layers\.1\.mlp\.experts\.6\."):
        open_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("shape", [(6, 24, 32), (5, 48, 32), (6, 32, 48)])
def test_a_fused_stack_of_another_shape_is_refused(fused, shape):
    """By hand: half as many rows, an expert less, the other way round."""
    name = "model.layers.1.mlp.experts.gate_up_proj"
    rewrite(fused, lambda tensors: tensors | {name: np.zeros(shape, np.float32)})
    with pytest.raises(InputError, match=r"gate_up_proj' has shape .*gives \[6, 48, 32\]"):
        open_checkpoint(fused)


def test_a_packed_stack_with_scales_of_another_shape_is_refused(tmp_path):
    """By hand."""
    shutil.copytree(WITNESSES / "packed", tmp_path / "model")
    name = "model.layers.1.mlp.switch_mlp.up_proj.scales"
    rewrite(tmp_path / "model", lambda tensors: tensors | {name: tensors[name][:4].copy()})
    with pytest.raises(InputError, match="must have 5 x 64 rows"):
        open_checkpoint(tmp_path / "model")
