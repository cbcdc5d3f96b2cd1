"""Where adapters go, and files that fit nowhere. By hand, on either format."""

import json

import numpy as np
import pytest

from lockstep.reference.checkpoint.adapters import open_adapter
from tests.reference.checkpoint.adapters.conftest import DOWN, QUERY, draw


def moved(folder, path: str) -> None:
    """Give every tensor of the query projection another path."""
    folder.tensors = {n.replace(QUERY, path): value for n, value in folder.tensors.items()}


@pytest.mark.parametrize("path", ["model.layers.2.self_attn.q_proj", "model.layers.1.q_proj"])
def test_a_module_that_the_base_has_not(path, mlx, refuses):
    moved(mlx, path)
    refuses(mlx.open, f"does not match the base: it has no projection '{path}' (base model)")


@pytest.mark.parametrize("path", ["model.norm", "model.layers.0.input_layernorm", "score"])
def test_what_is_no_projection(path, peft, refuses):
    moved(peft, path)
    refuses(peft.open, f"does not match the base: it has no projection '{path}'")


def test_an_adapter_that_changes_nothing(mlx, refuses):
    """L05."""
    mlx.tensors = {n: v for n, v in mlx.tensors.items() if QUERY in n}
    moved(mlx, "blocks.1.attn.wq")
    refuses(mlx.open, "adapter changes no weights of the base: it has no projection 'blocks.1.")


@pytest.mark.parametrize("kind", ["mlx", "peft"])
def test_an_empty_file(kind, refuses, request):
    folder = request.getfixturevalue(kind)
    folder.tensors = {}
    refuses(folder.open, "adapter changes no weights: the file holds no tensor")


@pytest.mark.parametrize("lost", ["lora_a", "lora_b"])
def test_half_a_pair(lost, mlx, refuses):
    del mlx.tensors[f"{DOWN}.{lost}"]
    refuses(mlx.open, "is not whole: LoRA needs two matrices, it has")


def test_two_names_of_one_module(mlx, refuses):
    for part in ("lora_a", "lora_b"):
        mlx.tensors[f"{QUERY.removeprefix('model.')}.{part}"] = mlx.tensors[f"{QUERY}.{part}"]
    refuses(mlx.open, "two modules are one in the base")


def test_two_tensors_of_one_part(peft, refuses):
    peft.config["use_dora"] = True
    name = f"base_model.model.{QUERY}.lora_magnitude_vector"
    peft.tensors |= {name: draw(128), f"{name}.weight": draw(128)}
    refuses(peft.open, "two tensors for one part of a module")


@pytest.mark.parametrize("kind", ["mlx", "peft"])
def test_a_matrix_that_lies_the_other_way(kind, refuses, request):
    folder = request.getfixturevalue(kind)
    name = next(name for name in folder.tensors if QUERY in name)
    folder.tensors[name] = folder.tensors[name].T
    refuses(folder.open, "rank 2 on a base of 128 outputs and 64 inputs")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad, mlx, refuses):
    mlx.tensors[f"{DOWN}.lora_b"][1, 3] = bad
    refuses(mlx.open, "'model.layers.0.mlp.down_proj.lora_b' holds values that are not finite")


def test_a_value_beyond_float32(mlx, refuses):
    mlx.tensors[f"{DOWN}.lora_b"] = np.full((2, 64), 1e300)
    refuses(mlx.open, "holds values that are not finite")


def test_whole_numbers(mlx, refuses):
    mlx.tensors[f"{DOWN}.lora_b"] = np.zeros((2, 64), np.uint8)
    refuses(mlx.open, "has dtype U8, F64, F32, F16, BF16 are read")


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_become_float32(dtype, mlx):
    mlx.tensors = {name: value.astype(dtype) for name, value in mlx.tensors.items()}
    adapter = mlx.open().modules[DOWN]
    assert adapter.a.dtype == adapter.b.dtype == np.float32
    np.testing.assert_array_equal(adapter.b, mlx.tensors[f"{DOWN}.lora_b"].T)


def test_pickles_are_never_read(base, tmp_path, refuses):
    """L09."""
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02.")
    refuses(lambda: open_adapter(tmp_path, base), "'adapter_model.bin' is a pickle, which is never")


def test_a_folder_without_an_adapter(base, tmp_path, refuses):
    refuses(lambda: open_adapter(tmp_path, base), "neither adapters.safetensors nor adapter_model.")


def test_a_folder_with_two(mlx, refuses):
    folder = mlx.save()
    (folder / "adapter_model.safetensors").write_bytes(b"")
    refuses(lambda: open_adapter(folder, mlx.base), "but should hold one of them")


def test_a_gguf_file(base, tmp_path, refuses):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    refuses(lambda: open_adapter(tmp_path / "x.gguf", base), "is a GGUF file")


def test_a_file_without_a_config(peft, refuses):
    folder = peft.save()
    (folder / "adapter_config.json").unlink()
    refuses(lambda: open_adapter(folder, peft.base), "adapter_config.json: no such file")


@pytest.mark.parametrize("text", ["[]", "{", '{"r": 1, "r": 2}', '{"r": NaN}'])
def test_a_config_that_is_none(text, peft, refuses):
    folder = peft.save()
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    refuses(lambda: open_adapter(folder, peft.base), "adapter_config.json: ")


def test_a_link_that_leads_away(peft, tmp_path, refuses):
    folder = peft.save()
    config = tmp_path / "elsewhere.json"
    config.write_text(json.dumps(peft.config), encoding="utf-8")
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to(config)
    refuses(lambda: open_adapter(folder, peft.base), "symbolic link leads out of")
