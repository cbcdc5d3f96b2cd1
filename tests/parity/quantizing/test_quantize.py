"""A packed folder is the dense one, rounded. By law, on committed checkpoints and random ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep import fast, reference
from lockstep.parity.quantizing import Rule, parse_packing, quantize, recipe_of
from lockstep.parity.quantizing.recipe import ROUTERS
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.packed import Packing
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops import dequantize
from lockstep.reference.packing import quantize_affine
from tests.parity.builders import TOKENS, checkpoint

WITNESSES = Path(__file__).parents[2] / "witnesses"
DENSE = (
    "models/tied_bfloat16", "models/sliding_bfloat16", "models/biased_float16",
    "qwen3_moe/fused", "qwen3_moe/separate", "gemma4/dense", "gemma4/effective", "gemma4/sparse",
)  # fmt: skip
FLOAT32 = np.dtype(np.float32)
FOUR = recipe_of(4, 32, "affine")


@pytest.mark.parametrize("name", DENSE)
def test_each_matrix_is_packed_and_nothing_else_changes(name, tmp_path):
    """By law: what is packed is the reference's packing of the dense tensor of that name."""
    made = quantize(WITNESSES / name, tmp_path / "packed", FOUR)
    dense, packed = open_checkpoint(WITNESSES / name), open_checkpoint(tmp_path / "packed")
    assert packed.names == dense.names and not packed.warnings
    count = 0
    for tensor in dense.names:
        stored, before = packed.stored(tensor), dense.tensor(tensor)
        if not stored.packed:
            assert packed.tensor(tensor).tobytes() == before.tobytes()
            continue
        count += 1
        after, bits, group = packed.tensor(tensor), stored.bits, stored.group_size
        expected = quantize_affine(before, bits=bits, group_size=group)
        for part in ("packed", "scales", "biases"):
            assert getattr(after, part).tobytes() == getattr(expected, part).tobytes()
    assert count == sum(made["packed"].values()) > 5
    groups = {one: 64 if one.endswith(ROUTERS) else 32 for one in made["kept"]}
    assert all(dense.stored(f"{one}.weight").shape[-1] % size for one, size in groups.items())


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_every_engine_runs_it_as_if_it_were_dense(mode, tmp_path):
    """By law: the packed model gives what the dense one gives with the unpacked numbers."""
    source = checkpoint(tmp_path / "dense", hidden_size=64, intermediate_size=128)
    quantize(source, tmp_path / "packed", recipe_of(None, None, mode))
    packed = open_checkpoint(tmp_path / "packed")
    tensors = load_file(source / "model.safetensors")
    for name in tensors:
        if packed.stored(name).packed:
            assert packed.stored(name).mode == mode
            tensors[name] = dequantize(packed.tensor(name), rows=slice(None), dtype=FLOAT32)
    save_file(tensors, source / "model.safetensors")
    expected = reference.load(source).forward(TOKENS)
    folder = tmp_path / "packed"
    models = [reference.load(folder), *(fast.load(folder, backend=one) for one in ("mlx", "cpu"))]
    for model in models:
        found = np.asarray(model.forward(TOKENS))
        assert np.abs(found - expected).max() <= 2e-5 * expected.std()


def test_rules_and_what_is_kept(tmp_path):
    """By hand."""
    source = checkpoint(tmp_path / "dense", hidden_size=64, intermediate_size=128)
    rules = [Rule("layers.1.mlp.down_proj", parse_packing("8/128")), Rule("v_proj", None)]
    recipe = recipe_of(3, 64, "affine", ["lm_head", "embed_tokens"], rules)
    made = quantize(source, tmp_path / "packed", recipe)
    packed = open_checkpoint(tmp_path / "packed")
    how = {name: packed.stored(name) for name in packed.names}
    assert how["model.layers.1.mlp.down_proj.weight"].bits == 8
    assert how["model.layers.1.mlp.down_proj.weight"].group_size == 128
    assert how["model.layers.0.mlp.down_proj.weight"].bits == 3
    dense = {f"model.layers.{layer}.self_attn.v_proj" for layer in (0, 1)}
    assert set(made["kept"]) == dense | {"lm_head", "model.embed_tokens"}
    config = json.loads((tmp_path / "packed" / "config.json").read_text(encoding="utf-8"))
    assert config["quantization"] == config["quantization_config"]
    assert config["quantization"] == {
        "group_size": 64, "bits": 3, "mode": "affine",
        "model.layers.1.mlp.down_proj": {"group_size": 128, "bits": 8, "mode": "affine"},
    }  # fmt: skip


def test_keeping_the_head_of_a_tied_model_keeps_the_table(tmp_path):
    source = WITNESSES / "models/tied_bfloat16"
    made = quantize(source, tmp_path / "packed", recipe_of(4, 32, "affine", ["lm_head"]))
    assert made["kept"] == ["model.embed_tokens"]


def test_a_rule_for_the_head_of_a_tied_model_is_one_for_the_table(tmp_path):
    recipe = recipe_of(4, 32, "affine", [], [Rule("lm_head", parse_packing("8/32"))])
    quantize(WITNESSES / "models/tied_bfloat16", tmp_path / "packed", recipe)
    assert open_checkpoint(tmp_path / "packed").stored("model.embed_tokens.weight").bits == 8


@pytest.mark.parametrize("name", ["models/tied_bfloat16", "gemma4/sparse"])
def test_each_module_is_packed_once_and_let_go(name, tmp_path, monkeypatch):
    """By hand: also where scales are as wide as codes, and so are written before them."""
    from lockstep.parity.quantizing.packed_module import PackedModule

    packed, held = [], []
    once = PackedModule._packed

    def counted(self):
        packed.append(self.name)
        held.append(self)
        return once(self)

    monkeypatch.setattr(PackedModule, "_packed", counted)
    quantize(WITNESSES / name, tmp_path / "packed", FOUR)
    assert len(packed) == len({*packed}) > 5 and not any(one.made for one in held)


def test_a_model_that_mlx_lm_has_not_is_told(tmp_path):
    source = edited(WITNESSES / "models/tied_bfloat16", tmp_path / "wedlm")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "wedlm", "architectures": ["WeDLMForCausalLM"], "qk_norm": True}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    made = quantize(source, tmp_path / "packed", FOUR)
    assert "mlx-lm has no wedlm, so it cannot load the folder" in made["warnings"]
    assert open_checkpoint(tmp_path / "packed").architecture == "wedlm"


def test_tiles_and_spans_change_nothing(tmp_path, monkeypatch):
    """By law: a weight that is read and packed in many pieces is the same weight."""
    from lockstep.parity.quantizing import packed_module

    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    quantize(WITNESSES / "qwen3_moe/fused", whole, FOUR)
    monkeypatch.setattr(packed_module, "TILE", 100)
    monkeypatch.setattr(packed_module, "SPAN", 300)
    quantize(WITNESSES / "qwen3_moe/fused", pieces, FOUR)
    both = [(one / "model.safetensors").read_bytes() for one in (whole, pieces)]
    assert both[0] == both[1]


def edited(folder: Path, target: Path, **changes: np.ndarray) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    save_file(load_file(target / "model.safetensors") | changes, target / "model.safetensors")
    return target


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_no_code_can_say_is_refused(odd, mode, tmp_path):
    source = checkpoint(tmp_path / "dense")
    name = "model.layers.1.mlp.up_proj.weight"
    weight = load_file(source / "model.safetensors")[name]
    weight[3, 4] = odd
    bad = edited(source, tmp_path / "bad", **{name: weight})
    with pytest.raises(InputError, match=f"tensor '{name}' cannot be packed: it has numbers that"):
        quantize(bad, tmp_path / "packed", recipe_of(None, 32 if mode == "affine" else None, mode))
    assert not (tmp_path / "packed").exists() and len(list(tmp_path.iterdir())) == 2


def test_a_packed_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="packed already; give the model that they were made of"):
        quantize(WITNESSES / "models/affine_4_64", tmp_path / "again", FOUR)


def test_a_rule_that_fits_nothing_is_refused(tmp_path):
    recipe = recipe_of(4, 32, "affine", ["lm_haed"])
    with pytest.raises(InputError, match="fits no weight that can be packed; these are down_proj"):
        quantize(WITNESSES / "models/tied_bfloat16", tmp_path / "packed", recipe)


def test_nothing_to_pack_is_refused(tmp_path):
    with pytest.raises(InputError, match="no weight is packed by this recipe"):
        quantize(
            WITNESSES / "models/tied_bfloat16", tmp_path / "p", recipe_of(4, 32, "affine", ["*"])
        )


def test_packings_are_held_as_the_reader_reads_them():
    """By hand: what the recipe says is what the checkpoint's own rule infers."""
    packed = quantize_affine(np.ones((2, 64), np.float32), bits=4, group_size=32)
    assert isinstance(packed, QuantizedTensor)
    assert Packing(packed.bits, packed.group_size, packed.mode) == parse_packing("4/32")


def test_the_command(lockstep, tmp_path):
    source, target = WITNESSES / "models/tied_bfloat16", tmp_path / "packed"
    said = lockstep("quantize", source, target, "--group-size", 32, "--keep", "embed_tokens")
    assert said.code == 0 and said.err == "", said
    first, kept, sizes, where = said.out.splitlines()
    assert first == "14 matrices packed with 4 bits in groups of 32"
    assert kept == "1 stay dense: model.embed_tokens"
    assert sizes.startswith("183.8 kB became 71.2 kB, ") and where == f"-> {target}"
    again = lockstep("quantize", source, target)
    assert (again.code, again.out) == (2, "") and "not empty" in again.err


@pytest.mark.parametrize(
    "options, said",
    [
        (["--rule", "down_proj"], "is not NAME=HOW"),
        (["--rule", "down_proj=seven"], "says no packing"),
        (["--keep", "a,,b"], "is not a list of names"),
        (["--recipe", "mixed_3_6", "--bits", "4"], "says the bits itself"),
        (["--mode", "int4"], "invalid choice"),
    ],
)
def test_words_that_say_nothing(lockstep, options, said, tmp_path):
    found = lockstep("quantize", WITNESSES / "models/tied_bfloat16", tmp_path / "new", *options)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1
