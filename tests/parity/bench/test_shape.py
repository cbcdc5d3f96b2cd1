"""A model's shape in every format that needs no package beside ours: the same model in each."""

import numpy as np
import pytest

from lockstep.parity.bench import shape
from lockstep.parity.bench.contexts import LENGTHS, STEPS
from lockstep.parity.bench.shape import FORMATS, QWEN3_0_6B, main, resized, write_shape
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length
from lockstep.reference.ops import dequantize
from lockstep.reference.stores.kinds import KINDS, kept_whole

TINY = QWEN3_0_6B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
}
UP = "model.layers.0.mlp.up_proj.weight"


def up(path):
    return open_checkpoint(path).tensor(UP)


def test_dense_formats_hold_the_same_numbers(tmp_path):
    """By law: what bfloat16 holds is held by all, float16 as far as it reaches."""
    made = {form: up(write_shape(TINY, tmp_path / form, form)) for form in shape.DENSE}
    assert [made[form].dtype.name for form in shape.DENSE] == [*shape.DENSE]
    truth = made["bfloat16"].astype(np.float32)
    np.testing.assert_array_equal(made["float32"], truth)
    np.testing.assert_allclose(made["float16"].astype(np.float32), truth, rtol=0, atol=2**-24)


@pytest.mark.parametrize(
    ("form", "worst"), [("mlx-4bit", 0.08), ("mlx-8bit", 0.005), ("mxfp4", 0.2)]
)
def test_packed_formats_are_near_it(tmp_path, form, worst):
    """By law: a packing is off by about half a step of its codes, as seen beside the weights."""
    truth = up(write_shape(TINY, tmp_path / "dense", "float32"))
    packed = up(write_shape(TINY, tmp_path / form, form))
    off = dequantize(packed, rows=slice(None), dtype=np.dtype(np.float32)) - truth
    assert 0 < np.sqrt(np.mean(off**2)) < worst * truth.std() * 2


def test_twice_the_same_file(tmp_path):
    first, again = (write_shape(TINY, tmp_path / name, "mlx-4bit") for name in "ab")
    name = "model.safetensors"
    assert (first / name).read_bytes() == (again / name).read_bytes()


def test_the_shape_is_the_published_one():
    """By hand: Qwen3-0.6B has 440.4M weights in layers, 155.6M in its table."""
    from lockstep.parity.noise.random_checkpoint import weight_shapes

    sizes = {name: int(np.prod(one)) for name, one in weight_shapes(dict(QWEN3_0_6B)).items()}
    layers = sum(size for name, size in sizes.items() if ".layers." in name and "norm" not in name)
    assert (round(layers / 1e5), round(sizes["model.embed_tokens.weight"] / 1e5)) == (4404, 1556)


def test_another_depth_and_width():
    """By hand: half as wide is half as many heads, of the same width."""
    for layers in (0, -1):
        with pytest.raises(InputError, match=f"--layers: {layers}, but should be at least 1"):
            resized("qwen3-0.6b", layers=layers)
    found = resized("qwen3-0.6b", layers=3, width=512)
    assert (found["num_hidden_layers"], found["hidden_size"], found["head_dim"]) == (3, 512, 128)
    assert (found["intermediate_size"], found["num_attention_heads"]) == (1536, 8)
    assert found["num_key_value_heads"] == 4


def test_the_narrow_shape_serves_every_cache_at_every_length(tmp_path):
    """By law: all kinds have codes for its heads, and its context holds the longest profile."""
    config = open_checkpoint(write_shape(shape.NARROW, tmp_path / "model", "bfloat16")).config
    assert not [kind for kind in KINDS if kept_whole(kind, config)]
    assert context_length(config) >= max(LENGTHS) + STEPS


def test_the_command_says_what_to_give_as_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(shape.SHAPES, "qwen3-0.6b", TINY)
    target = tmp_path / "model"
    assert main(["qwen3-0.6b", str(target), "--format", "mlx-8bit"]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert main(["qwen3-0.6b", str(target)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_format_whose_package_is_missing(tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(shape.SHAPES, "qwen3-0.6b", TINY)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["qwen3-0.6b", str(tmp_path / "m"), "--format", "gguf-q8_0"]) == 2
    assert "not installed: gguf" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_names_of_formats():
    assert {"bfloat16", "mlx-4bit", "gguf-q4_0", "gguf-q8_0", "gguf-q4_k", "gguf-bf16"} < {*FORMATS}
