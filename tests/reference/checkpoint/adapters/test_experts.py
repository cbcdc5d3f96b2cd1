"""Adapters of experts in every form that files have. By hand, on a committed base."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from lockstep.reference.checkpoint.adapters import Adapters, open_adapter
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.reference.checkpoint.adapters.conftest import draw

BASE = Path(__file__).parents[3] / "witnesses" / "qwen3_moe" / "separate"
MLP = "model.layers.1.mlp"


@pytest.fixture
def opened(tmp_path):
    base = open_checkpoint(BASE)
    shape = base.stored(f"{MLP}.experts.gate_proj.weight").shape

    def read(kind: str, tensors: dict[str, np.ndarray], **config: object) -> Adapters:
        names = {"mlx": "adapters.safetensors", "peft": "adapter_model.safetensors"}
        flat = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        (tmp_path / names[kind]).write_bytes(save(flat))
        (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        return open_adapter(tmp_path, base)

    return read, shape


MLX = {"lora_parameters": {"rank": 2, "scale": 20.0}}
PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 6}


def test_mlx_lm_holds_them_as_they_are_used(opened):
    """(experts, rank, inputs) and (experts, outputs, rank); 20 is not divided by the rank."""
    read, (count, outputs, inputs) = opened
    a, b = draw(count, 2, inputs), draw(count, outputs, 2)
    path = f"{MLP}.switch_mlp.gate_proj"
    found = read("mlx", {f"{path}.lora_a": a, f"{path}.lora_b": b}, **MLX).modules
    one = found[f"{MLP}.experts.gate_proj"]
    assert one.scale == 20.0
    np.testing.assert_array_equal(one.a, a)
    np.testing.assert_array_equal(one[3].b, b[3])


def test_peft_interleaves_them(opened):
    """Ranks lie one expert after another in A, experts alternate in B; 6 / 2 is divided once."""
    read, (count, outputs, inputs) = opened
    a, b = draw(2 * count, inputs), draw(2 * outputs, 2 * count)
    start = f"base_model.model.{MLP}.experts"
    tensors = {f"{start}.lora_A.weight": a, f"{start}.lora_B.weight": b}
    found = read("peft", tensors, **PEFT).modules
    assert found.keys() == {f"{MLP}.experts.gate_proj", f"{MLP}.experts.up_proj"}
    gate, up = (found[f"{MLP}.experts.{name}_proj"] for name in ("gate", "up"))
    assert gate.scale == up.scale == 3.0
    np.testing.assert_array_equal(gate[1].a, a[2:4])
    np.testing.assert_array_equal(up[1].b, b[outputs:, [1, 1 + count]])
    np.testing.assert_array_equal(gate[1].b, b[:outputs, [1, 1 + count]])


def test_patterns_name_the_parameter(opened):
    read, (count, outputs, inputs) = opened
    start = f"base_model.model.{MLP}.experts"
    tensors = {
        f"{start}.lora_A.weight": draw(3 * count, outputs),
        f"{start}.lora_B.weight": draw(inputs, 3 * count),
    }
    found = read("peft", tensors, **PEFT | {"rank_pattern": {"experts.down_proj": 3}}).modules
    assert found[f"{MLP}.experts.down_proj"].scale == 2.0


def test_one_expert_of_older_files(opened):
    """The others keep their matrix; ranks may differ, and then so do factors."""
    read, (count, outputs, inputs) = opened
    tensors = {}
    for expert, rank in ((0, 2), (count - 1, 3)):
        start = f"base_model.model.{MLP}.experts.{expert}.gate_proj"
        tensors |= {f"{start}.lora_A.weight": draw(rank, inputs)}
        tensors |= {f"{start}.lora_B.weight": draw(outputs, rank)}
    patterns = {"rank_pattern": {f"experts.{count - 1}.gate_proj": 3}}
    one = read("peft", tensors, **PEFT | patterns).modules[f"{MLP}.experts.gate_proj"]
    assert not one[1].b.any()
    for expert, factor in ((0, 3.0), (count - 1, 2.0)):
        start = f"base_model.model.{MLP}.experts.{expert}.gate_proj"
        pair = tensors[f"{start}.lora_B.weight"], tensors[f"{start}.lora_A.weight"]
        found = one.scale * one[expert].b @ one[expert].a
        np.testing.assert_allclose(found, factor * pair[0] @ pair[1], rtol=1e-5, atol=1e-5)


WRONG = {
    "too many experts": ("switch_mlp.gate_proj", 1, "but should have"),
    "none of them": ("switch_mlp.twist_proj", 0, "it has no projection"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case, opened, refuses):
    read, (count, outputs, inputs) = opened
    name, more, core = WRONG[case]
    a, b = draw(count + more, 2, inputs), draw(count + more, outputs, 2)
    tensors = {f"{MLP}.{name}.lora_a": a, f"{MLP}.{name}.lora_b": b}
    refuses(lambda: read("mlx", tensors, **MLX), core)


def test_an_expert_that_is_not_there(opened, refuses):
    read, (count, outputs, inputs) = opened
    start = f"base_model.model.{MLP}.experts.{count}.gate_proj"
    tensors = {f"{start}.lora_A.weight": draw(2, inputs)}
    tensors |= {f"{start}.lora_B.weight": draw(outputs, 2)}
    refuses(lambda: read("peft", tensors, **PEFT), "it has no projection")


def test_dora_of_experts(opened, refuses):
    read, (count, outputs, inputs) = opened
    start = f"{MLP}.switch_mlp.gate_proj"
    tensors = {
        f"{start}.lora_a": draw(count, 2, inputs),
        f"{start}.lora_b": draw(count, outputs, 2),
    }
    refuses(lambda: read("mlx", tensors, **MLX | {"fine_tune_type": "dora"}), "is not supported")


def test_one_expert_and_all_of_them(opened, refuses):
    """Two adapters of one matrix."""
    read, (count, outputs, inputs) = opened
    start = f"base_model.model.{MLP}.experts"
    tensors = {
        f"{start}.0.down_proj.lora_A.weight": draw(2, outputs),
        f"{start}.0.down_proj.lora_B.weight": draw(inputs, 2),
        f"{start}.lora_A.weight": draw(2 * count, outputs),
        f"{start}.lora_B.weight": draw(inputs, 2 * count),
    }
    refuses(lambda: read("peft", tensors, **PEFT), "two modules are one in the base")


def test_a_rank_beyond_the_matrix_of_one_expert(opened, refuses):
    """The stack that it would be put into has zeros for all the others."""
    read, (_, outputs, inputs) = opened
    start, rank = f"base_model.model.{MLP}.experts.0.gate_proj", min(outputs, inputs) + 1
    tensors = {f"{start}.lora_A.weight": draw(rank, inputs)}
    tensors |= {f"{start}.lora_B.weight": draw(outputs, rank)}
    config = PEFT | {"r": rank}
    refuses(lambda: read("peft", tensors, **config), f"rank {rank} of one expert is more than")
