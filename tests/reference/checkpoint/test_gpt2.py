"""GPT-2's config and files: each key has an answer, and the matrices come out the right way up."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

WITNESSES = Path(__file__).parents[2] / "witnesses" / "gpt2"


@pytest.fixture
def folder(tmp_path) -> Path:
    shutil.copytree(WITNESSES / "original", tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **keys) -> None:
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    kept = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(kept))


def rewrite(folder: Path, edit) -> None:
    """Change the tensors of the file."""
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path)


REFUSED = {
    "activation_function": ("relu", "must be 'gelu_new' or 'gelu_pytorch_tanh' or 'gelu'"),
    "add_cross_attention": (True, "must be false: a decoder that stands alone is read"),
    "num_key_value_heads": (1, "must be n_head=3"),
    "n_head": (5, "n_embd=48 is not a multiple of n_head=5"),
    "n_positions": (0, "must be a positive integer"),
    "n_inner": (4.0, "must be a positive integer"),
    "layer_norm_epsilon": ("1e-5", "must be a number"),
    "scale_attn_weights": (1, "must be true or false"),
    "rope_theta": (1e4, "unknown config key 'rope_theta'"),
    "architectures": (["GPT2DoubleHeadsModel"], "names an unsupported architecture"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_wrong_is_refused(folder, key):
    """By hand: one line that says which key, and what it may be."""
    value, line = REFUSED[key]
    change(folder, **{key: value})
    with pytest.raises(InputError, match=line) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"])
@pytest.mark.parametrize("key_of_arithmetic", ["layer_norm_epsilon", "activation_function"])
def test_a_key_that_is_missing_is_refused(folder, key, key_of_arithmetic):
    """By law: nothing that shapes the model or changes its arithmetic is guessed."""
    for one in (key, key_of_arithmetic):
        shutil.copy(WITNESSES / "original" / "config.json", folder / "config.json")
        change(folder, **{one: None})
        with pytest.raises(InputError, match=f"field '{one}' must be .*found nothing"):
            open_checkpoint(folder)


def test_what_old_files_leave_out_counts_as_it_was(folder):
    """By hand: the original config.json, of 2019."""
    config = open_checkpoint(folder).config
    assert config.n_inner == 4 * config.n_embd
    assert config.tie_word_embeddings and config.scale_attn_weights
    assert not config.scale_attn_by_inverse_layer_idx
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (48, 3, 16)


def test_the_scale_of_the_scores(folder):
    """By hand: 1/4 for heads of 16, divided by 1, 2, ... for the layers if asked for."""
    assert open_checkpoint(folder).config.attention_scale(1) == 0.25
    change(folder, scale_attn_by_inverse_layer_idx=True)
    assert open_checkpoint(folder).config.attention_scale(1) == 0.125
    change(folder, scale_attn_weights=False)
    assert open_checkpoint(folder).config.attention_scale(0) == 1.0
    assert open_checkpoint(folder).config.attention_scale(1) == 0.5


def test_upcasting_is_mentioned(folder):
    """By hand: it changes half precision alone, and is not done here."""
    change(folder, reorder_and_upcast_attn=True)
    assert any("reorder_and_upcast_attn" in line for line in open_checkpoint(folder).warnings)


def test_the_masks_are_no_biases(folder):
    """By hand: dropped with a reason; any other tensor is refused."""
    warnings = open_checkpoint(folder).warnings
    assert any("they are the causal mask, not biases" in line for line in warnings)
    rewrite(folder, lambda tensors: tensors | {"h.0.attn.extra": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match=r"unknown tensors 'h\.0\.attn\.extra'"):
        open_checkpoint(folder)


def test_matrices_are_handed_out_with_one_row_an_output(folder):
    """By hand: the file holds (inputs, outputs)."""
    stored = load_file(folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    for path in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        name = f"transformer.h.1.{path}.weight"
        weight = checkpoint.tensor(name)
        np.testing.assert_array_equal(weight, stored[f"h.1.{path}.weight"].T)
        np.testing.assert_array_equal(checkpoint.tensor_rows(name, 5, 9), weight[5:9])
        assert checkpoint.stored(name).shape == weight.shape
    table = checkpoint.tensor("transformer.wte.weight")
    np.testing.assert_array_equal(table, stored["wte.weight"])
    assert checkpoint.tensor_rows("transformer.wpe.weight", 3, 5).shape == (2, 48)


@pytest.mark.parametrize("prefix", ["", "transformer.", "model."])
def test_every_prefix_is_read(folder, prefix):
    """By law: a prefix changes no value."""
    before = open_checkpoint(folder).tensor("transformer.h.0.mlp.c_fc.weight")
    rewrite(folder, lambda tensors: {prefix + name: value for name, value in tensors.items()})
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(checkpoint.tensor("transformer.h.0.mlp.c_fc.weight"), before)
    assert checkpoint.names[0] == "transformer.wte.weight"


def test_a_matrix_the_other_way_round_than_its_file_is_refused(folder):
    """By hand: `c_fc` turned alone has not the shape that the file's layout asks for."""

    def turned(tensors):
        name = "h.0.mlp.c_fc.weight"
        return tensors | {name: np.ascontiguousarray(tensors[name].T)}

    rewrite(folder, turned)
    line = r"'h\.0\.mlp\.c_fc\.weight' has shape \[192, 48\], config.json gives \[48, 192\]"
    with pytest.raises(InputError, match=line):
        open_checkpoint(folder)


def test_a_missing_tensor_is_named_as_the_file_would(folder):
    """By hand."""
    rewrite(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "h.1.ln_2.bias"})
    with pytest.raises(InputError, match=r"missing 'h\.1\.ln_2\.bias'"):
        open_checkpoint(folder)


def test_packed_matrices_lie_by_rows(tmp_path):
    """By hand: mlx-lm turns them before it packs, and its declaration uses its own names."""
    shutil.copytree(WITNESSES / "packed", tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    weight = checkpoint.tensor("transformer.h.0.mlp.c_proj.weight")
    assert (weight.shape, weight.bits, weight.group_size) == ((64, 256), 4, 32)
    rows = checkpoint.tensor_rows("transformer.h.0.mlp.c_proj.weight", 2, 4)
    np.testing.assert_array_equal(rows.packed, weight.packed[2:4])
    assert checkpoint.warnings == []
    section = json.loads((tmp_path / "model/config.json").read_text())["quantization"]
    declared = section | {"model.h.0.mlp.c_proj": {"bits": 8, "group_size": 32}}
    change(tmp_path / "model", quantization=declared, quantization_config=declared)
    line = "config.json declares 8 bits in groups of 32 for 'model.h.0.mlp.c_proj'"
    assert any(line in warning for warning in open_checkpoint(tmp_path / "model").warnings)
