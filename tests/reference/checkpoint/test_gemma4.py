"""Gemma 4's config and files: each key has an answer, and the text model is found in any layout."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.quantization import spellings

WITNESSES = Path(__file__).parents[2] / "witnesses" / "gemma4"


@pytest.fixture
def dense(tmp_path) -> Path:
    return copied("dense", tmp_path)


def copied(name: str, tmp_path: Path) -> Path:
    shutil.copytree(WITNESSES / name, tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, *drop: str, **keys) -> None:
    """Set keys of config.json, and remove some."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in drop}))


ROPE = {
    "full_attention": {
        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip
REFUSED = {
    "hidden_activation": ("silu", "must be 'gelu_pytorch_tanh'"),
    "attention_bias": (True, "must be false"),
    "use_bidirectional_attention": ("all", "must be null or 'vision'"),
    "head_dim": (7, "is odd: rotary embedding needs pairs"),
    "layer_types": (["full_attention"], "must list 3 layers"),
    "num_attention_heads": (3, "num_attention_heads=3 is not a multiple"),
    "num_kv_shared_layers": (3, "from 0 to 2"),
    "final_logit_softcapping": ("30", "must be a number"),
    "enable_moe_block": (1, "must be true or false"),
    "per_layer_config": ({"0": {"head_dim": 16}}, "must have full layers, and no other"),
    "global_head_dim": (12, "must be 16, as in per_layer_config"),
    "rope_parameters": (ROPE | {"longest": {}}, "unknown config key 'rope_parameters.longest'"),
    "shared_experts": (2, "unknown config key 'shared_experts'"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_wrong_is_refused(dense, key):
    """By hand: one line that says which key, and what it may be."""
    value, line = REFUSED[key]
    change(dense, **{key: value})
    with pytest.raises(InputError, match=line) as caught:
        open_checkpoint(dense)
    assert "\n" not in str(caught.value)


NEEDED = (
    "layer_types", "sliding_window", "head_dim", "num_key_value_heads", "attention_k_eq_v",
    "final_logit_softcapping", "num_kv_shared_layers", "use_double_wide_mlp", "enable_moe_block",
    "hidden_size_per_layer_input", "rope_parameters",
)  # fmt: skip


@pytest.mark.parametrize("key", NEEDED)
def test_a_key_that_is_missing_is_refused(dense, key):
    """By law: engines take different things where it is absent, so nothing is."""
    change(dense, key)
    with pytest.raises(InputError, match=f"field '{key}' must .*found nothing"):
        open_checkpoint(dense)


@pytest.mark.parametrize("kind, key, value", [
    ("full_attention", "rope_type", "default"),
    ("sliding_attention", "rope_type", "yarn"),
    ("full_attention", "partial_rotary_factor", 1.5),
    ("full_attention", "factor", 2.0),
])  # fmt: skip
def test_another_rope_is_refused(dense, kind, key, value):
    """By hand."""
    change(dense, rope_parameters=ROPE | {kind: ROPE[kind] | {key: value}})
    with pytest.raises(InputError, match=rf"rope_parameters\.{kind}\.{key}'"):
        open_checkpoint(dense)


def test_both_spellings_of_the_heads_of_full_layers(dense):
    """By hand: transformers 5 says it for each layer, published files in two keys."""
    before = open_checkpoint(dense).config
    assert (before.global_head_dim, before.num_global_key_value_heads) == (16, 1)
    two = {"global_head_dim": 16, "num_global_key_value_heads": 1}
    change(dense, "per_layer_config", **two)
    assert open_checkpoint(dense).config == before
    change(dense, num_global_key_value_heads=None, attention_k_eq_v=False)
    with pytest.raises(InputError, match=r"missing 'model\.layers\.1\.self_attn\.v_proj"):
        open_checkpoint(dense)


def test_full_layers_must_be_alike(dense):
    """By hand: two widths would need two rotary embeddings."""
    change(dense, per_layer_config={"1": {"head_dim": 16}, "2": {"head_dim": 24}})
    with pytest.raises(InputError, match="must say the same of all full layers"):
        open_checkpoint(dense)


def test_the_last_layer_is_full(tmp_path):
    """By hand: as in transformers, whatever is listed."""
    folder = copied("effective", tmp_path)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    change(
        folder, layer_types=kinds, per_layer_config={"1": {"head_dim": 16}, "3": {"head_dim": 16}}
    )
    opened = open_checkpoint(folder)
    assert opened.config.layer_types == (*kinds[:3], "full_attention")
    assert any("the last layer is full" in warning for warning in opened.warnings)


def test_what_layers_share_needs_an_owner(tmp_path):
    """By hand: no sliding layer is left with keys of its own."""
    folder = copied("effective", tmp_path)
    change(folder, num_kv_shared_layers=3)
    with pytest.raises(InputError, match="must leave a layer of each kind with keys of its own"):
        open_checkpoint(folder)


def test_the_second_vocabulary_covers_the_first(tmp_path):
    """By hand."""
    folder = copied("effective", tmp_path)
    change(folder, vocab_size_per_layer_input=109)
    with pytest.raises(InputError, match="must be at least vocab_size=110"):
        open_checkpoint(folder)


def test_keys_that_nobody_reads_are_tolerated(tmp_path):
    """By hand: of layers that take those of others; elsewhere a tensor too many is refused."""
    opened = open_checkpoint(WITNESSES / "effective")
    assert any("take their keys and values from an earlier" in one for one in opened.warnings)
    folder = copied("dense", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] = np.zeros((16, 32), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"unknown tensors 'model\.layers\.1\.self_attn\.v_proj"):
        open_checkpoint(folder)


def test_what_nobody_reads_can_be_asked_for_if_it_is_like_what_others_read(tmp_path):
    """By hand: layer 2 shares keys; a tensor under its name has the shape of layer 0's, or not."""
    assert not open_checkpoint(WITNESSES / "effective").unused  # they have other shapes
    folder, name = copied("effective", tmp_path), "model.layers.2.self_attn.k_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors["model.layers.0.self_attn.k_proj.weight"] + 1
    save_file(tensors, folder / "model.safetensors")
    opened = open_checkpoint(folder)
    assert list(opened.unused) == [name]
    assert name not in opened.names and not opened.has(name)
    assert np.array_equal(np.asarray(opened.tensor(name)), tensors[name])
    with pytest.raises(KeyError, match="no tensor"):
        opened.tensor("model.layers.2.self_attn.v_proj.weight")


def test_the_multimodal_layout(tmp_path):
    """By hand: names are those of the text model, and the rest is excused in one line."""
    opened = open_checkpoint(WITNESSES / "sparse")
    assert opened.architecture == "gemma4"
    assert "model.layers.0.router.per_expert_scale" in opened.names
    assert [warning[:50] for warning in opened.warnings] == [
        "tensors not used, because only images and sound us"
    ]


@pytest.mark.parametrize("change_to, line", [
    ({"text_config": None}, "field 'text_config' must be an object"),
    ({"vocab_size": 7}, "field 'vocab_size' must be 110, as in text_config"),
    ({"tie_word_embeddings": False}, "must be True, as in text_config"),
    ({"projector": 3}, "unknown config key 'projector'"),
])  # fmt: skip
def test_the_outer_config_is_checked_too(tmp_path, change_to, line):
    """By hand."""
    folder = copied("sparse", tmp_path)
    change(folder, **change_to)
    with pytest.raises(InputError, match=line):
        open_checkpoint(folder)


def test_an_inner_key_is_named_with_its_place(tmp_path):
    """By hand."""
    folder = copied("sparse", tmp_path)
    inner = json.loads((folder / "config.json").read_text())["text_config"]
    for key, value, line in (
        ("top_k_experts", 9, "top_k_experts=9, but num_experts=6"),
        ("top_k_experts", "2", "field 'text_config.top_k_experts' must be"),
        ("depth", 2, "unknown config key 'text_config.depth'"),
        ("model_type", "gemma3_text", "must be 'gemma4_text'"),
    ):
        change(folder, text_config=inner | {key: value})
        with pytest.raises(InputError, match=line):
            open_checkpoint(folder)


def test_the_last_token_may_be_said_inside(tmp_path):
    """By hand: a multimodal config may have it in `text_config` alone."""
    opened = open_checkpoint(WITNESSES / "sparse")
    assert opened.generation.eos_token_ids == {1}


def test_both_halves_of_the_fused_experts():
    """By hand: the rows of the gate lie above those of `up`."""
    stored = load_file(WITNESSES / "sparse" / "model.safetensors")
    fused = stored["model.language_model.layers.1.experts.gate_up_proj"]
    opened = open_checkpoint(WITNESSES / "sparse")
    for half, name in enumerate(("gate_proj", "up_proj")):
        found = opened.stack(f"model.layers.1.experts.{name}.weight")[4]
        np.testing.assert_array_equal(found, fused[4, 20 * half : 20 * (half + 1)])


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model."])
def test_a_module_is_known_under_every_prefix(prefix):
    """By law: converters list quantised modules under another prefix than the files have."""
    names = spellings(f"{prefix}layers.0.router.proj")
    for other in ("model.language_model.", "language_model.model.", "model."):
        assert f"{other}layers.0.router.proj" in names
