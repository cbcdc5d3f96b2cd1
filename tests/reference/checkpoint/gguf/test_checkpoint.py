"""From a GGUF file to a checkpoint of Hugging Face: names, config, rows, formats. By hand."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.architectures.gpt2 import GPT2Config
from lockstep.reference.checkpoint.architectures.qwen3 import Qwen3Config
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.gguf.names import stored_name
from lockstep.reference.checkpoint.gguf.rows import halves_first, heads_around
from lockstep.reference.checkpoint.rope_scaling import RopeScaling
from tests import gguf_bytes as g

CONFIG = Qwen3Config(
    vocab_size=10,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=RopeScaling(),
    tie_word_embeddings=True,
    attention_bias=False,
    max_position_embeddings=64,
    sliding_window=None,
    layer_types=("full_attention",),
)


def opened(tmp_path: Path, data: bytes, **options):
    path = tmp_path / "x.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return open_checkpoint(path, **options)


def test_the_config(tmp_path):
    checkpoint = opened(tmp_path, g.model())
    assert checkpoint.config == CONFIG  # eps is 1e-6, which no float32 is
    assert (checkpoint.architecture, checkpoint.model) == ("qwen3", "qwen3")
    assert checkpoint.path == tmp_path / "x.gguf"
    assert checkpoint.warnings == []


def test_what_llama_cpp_takes_where_keys_are_absent(tmp_path):
    absent = ("rope.freq_base", "attention.head_count_kv", "attention.key_length")
    changes = {f"qwen3.{key}": None for key in (*absent, "attention.value_length")}
    heads = {"blk.0.attn_k.weight": ((32, 32), 0), "blk.0.attn_q.weight": ((32, 32), 0)}
    narrow = {"blk.0.attn_output.weight": ((32, 32), 0)}
    norms = {f"blk.0.attn_{one}_norm.weight": ((8,), 0) for one in "qk"}
    config = opened(tmp_path, g.model(changes, heads | narrow | norms)).config
    assert (config.rope_theta, config.num_key_value_heads, config.head_dim) == (1e4, 4, 8)


def test_the_head_and_biases_are_seen_in_the_tensors(tmp_path):
    biases = {
        f"blk.0.attn_{one}.bias": ((rows,), 0)
        for one, rows in zip("qkv", (64, 32, 32), strict=True)
    }
    more = biases | {"blk.0.attn_output.bias": ((32,), 0), "output.weight": ((10, 32), 8)}
    checkpoint = opened(tmp_path, g.model(tensors=more))
    assert not checkpoint.config.tie_word_embeddings and checkpoint.config.attention_bias
    assert checkpoint.has("lm_head.weight")
    assert checkpoint.tensor("model.layers.0.self_attn.o_proj.bias").shape == (32,)


def test_how_tensors_are_stored(tmp_path):
    checkpoint = opened(tmp_path, g.model())
    assert checkpoint.names[:2] == (
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
    )
    table = checkpoint.stored("model.embed_tokens.weight")
    assert (table.dtype, table.shape, table.nbytes, table.bits) == ("Q8_0", (10, 32), 340, None)
    assert table.packed and not checkpoint.stored("model.norm.weight").packed
    assert isinstance(checkpoint.tensor("model.embed_tokens.weight"), BlockTensor)
    assert checkpoint.tensor("model.layers.0.self_attn.v_proj.weight").dtype.name == "bfloat16"
    assert checkpoint.tensor_rows("model.embed_tokens.weight", 2, 5).shape == (3, 32)
    with pytest.raises(KeyError):
        checkpoint.tensor("lm_head.weight")


def test_unknown_metadata(tmp_path):
    data = g.model(
        {"qwen3.logit_scale": (g.F32, 2.0), "qwen3.none": (g.U32, 0), "other.x": (g.U32, 9)}
    )
    with pytest.raises(
        InputError, match=r"unknown metadata 'qwen3.logit_scale'; pass --ignore-config"
    ):
        opened(tmp_path, data)
    checkpoint = opened(tmp_path, data, ignore_config=["qwen3.logit_scale"])
    assert checkpoint.warnings == ["unknown metadata ignored: 'qwen3.logit_scale', 'qwen3.none'"]


def test_the_ends_of_a_text(tmp_path):
    keys = {
        f"tokenizer.ggml.{name}_token_id": (g.U32, n)
        for n, name in enumerate(("eos", "eot", "bos"))
    }
    assert opened(tmp_path, g.model(keys)).generation.eos_token_ids == {0, 1}


def test_the_mask(tmp_path):
    named = opened(tmp_path, g.model({"tokenizer.ggml.mask_token_id": (g.U32, 3)}))
    assert named.generation.mask_token_id == 3 and named.generation.eos_token_ids == frozenset()
    assert opened(tmp_path, g.model()).generation.mask_token_id is None


def test_stretched_positions(tmp_path):
    linear = {
        "qwen3.rope.scaling.type": (g.STRING, "linear"),
        "qwen3.rope.scaling.factor": (g.F32, 4.0),
    }
    assert opened(tmp_path, g.model(linear)).config.rope_scaling == RopeScaling(
        "linear", factor=4.0
    )
    original = {"qwen3.rope.scaling.original_context_length": (g.U32, 16)}
    yarn = linear | original | {"qwen3.rope.scaling.type": (g.STRING, "yarn")}
    found = opened(tmp_path, g.model(yarn)).config.rope_scaling
    assert (found.rope_type, found.factor, found.original_max_position_embeddings) == (
        "yarn",
        4.0,
        16,
    )


def test_divided_frequencies(tmp_path):
    """By hand: the divisors serve for short texts and for long ones, and nothing is scaled."""
    divisors = np.arange(1, 9, dtype="<f4")
    data = g.model(tensors={"rope_freqs.weight": ((8,), 0)})
    assert data.endswith(bytes(32))
    found = opened(tmp_path, data[:-32] + divisors.tobytes()).config.rope_scaling
    assert found.rope_type == "longrope"
    assert found.short_factor == found.long_factor == tuple(range(1, 9))
    assert found.attention_factor == 1.0


def test_rows_go_back_to_where_they_were():
    """By hand: one head of 6 rows, and two of 4 packed in blocks."""
    assert halves_first(np.array([0, 3, 1, 4, 2, 5]), 6).tolist() == [0, 1, 2, 3, 4, 5]
    blocks = np.repeat(np.array([0, 2, 1, 3, 4, 6, 5, 7], np.uint8)[:, None], 34, axis=1)
    found = halves_first(BlockTensor(blocks, "Q8_0"), 4)
    assert isinstance(found, BlockTensor)
    assert found.blocks[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert heads_around(5, 9, 4) == (4, 12)
    assert heads_around(4, 8, 4) == (4, 8)


def test_names():
    layer = "model.layers.31"
    assert stored_name(f"{layer}.mlp.down_proj.weight", "llama") == "blk.31.ffn_down.weight"
    norm = f"{layer}.post_attention_layernorm.weight"
    assert stored_name(norm, "llama") == "blk.31.ffn_norm.weight"
    assert stored_name(norm, "gemma4") == "blk.31.post_attention_norm.weight"
    assert stored_name(f"{layer}.router.scale", "gemma4") == "blk.31.ffn_gate_inp.scale"
    for name in (f"{layer}.mlp.router.weight", f"{layer}.layer_scalar", "model.norm"):
        with pytest.raises(KeyError):
            stored_name(name, "qwen3")


GPT2 = {
    "gpt2.block_count": (g.U32, 1),
    "gpt2.context_length": (g.U32, 8),
    "gpt2.embedding_length": (g.U32, 32),
    "gpt2.feed_forward_length": (g.U32, 64),
    "gpt2.attention.head_count": (g.U32, 4),
    "gpt2.attention.layer_norm_epsilon": (g.F32, 1e-5),
}
GPT2_ROWS = {
    **{"attn_qkv": (96, 32), "attn_output": (32, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)},
    **{"attn_norm": (32,), "ffn_norm": (32,)},
}
GPT2_TENSORS = {
    "token_embd.weight": ((10, 32), 8),
    "position_embd.weight": ((8, 32), 0),
    **{f"blk.0.{name}.weight": (shape, 0) for name, shape in GPT2_ROWS.items()},
    **{f"blk.0.{name}.bias": (shape[:1], 0) for name, shape in GPT2_ROWS.items()},
    "output_norm.weight": ((32,), 0),
    "output_norm.bias": ((32,), 0),
}


def gpt2(keys=None, tensors=None) -> bytes:
    """Return a small GPT-2 of zeros. A change of None leaves that key out."""
    pairs = [g.pair("general.architecture", g.STRING, "gpt2")]
    found = GPT2 | {f"gpt2.{key}": value for key, value in (keys or {}).items()}
    pairs += [g.pair(key, *value) for key, value in found.items() if value is not None]
    return g.container(pairs, *g.laid_out(GPT2_TENSORS | (tensors or {})))


def test_gpt2(tmp_path):
    checkpoint = opened(tmp_path, gpt2())
    assert checkpoint.config == GPT2Config(
        vocab_size=10,
        n_positions=8,
        n_embd=32,
        n_layer=1,
        n_head=4,
        n_inner=64,
        layer_norm_epsilon=1e-5,
        activation_function="gelu_new",
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        tie_word_embeddings=True,
    )
    assert (checkpoint.model, checkpoint.position_limit) == ("gpt2", 8)
    assert checkpoint.tensor("transformer.h.0.attn.c_attn.weight").shape == (96, 32)
    assert checkpoint.tensor("transformer.h.0.mlp.c_proj.bias").shape == (32,)
    untied = opened(tmp_path, gpt2(tensors={"output.weight": ((10, 32), 2)}))
    assert not untied.config.tie_word_embeddings and untied.has("lm_head.weight")


@pytest.mark.parametrize(
    "keys, tensors, message",
    [
        ({"context_length": None}, {}, "field 'gpt2.context_length' must be"),
        ({"context_length": (g.U32, 9)}, {}, "'position_embd.weight' has shape"),
        ({"embedding_length": (g.STRING, "x")}, {}, "field 'gpt2.embedding_length' must be"),
        ({"attention.head_count": (g.U32, 3)}, {}, "n_embd=32 is not a multiple of n_head=3"),
        ({"attention.head_count": (g.U32, 0)}, {}, "field 'gpt2.attention.head_count' must be"),
        ({"attention.head_count_kv": (g.U32, 2)}, {}, "'gpt2.attention.head_count_kv' must be"),
        ({"attention.key_length": (g.U32, 16)}, {}, "'gpt2.attention.key_length' must be 8"),
        ({"attention.layer_norm_epsilon": None}, {}, "'gpt2.attention.layer_norm_epsilon' must"),
        ({"rope.freq_base": (g.F32, 1e4)}, {}, "unknown metadata 'gpt2.rope.freq_base'"),
        ({}, {"rope_freqs.weight": ((4,), 0)}, "unknown tensors 'rope_freqs.weight'"),
        ({}, {"blk.0.attn_qkv.weight": ((32, 96), 0)}, "'blk.0.attn_qkv.weight' has shape"),
        ({}, {"blk.0.ffn_gate.weight": ((64, 32), 0)}, "unknown tensors 'blk.0.ffn_gate.weight'"),
    ],
)
def test_what_is_no_gpt2(keys, tensors, message, tmp_path):
    with pytest.raises(InputError, match=message):
        opened(tmp_path, gpt2(keys, tensors))


def test_qwen2_has_biases_on_queries_keys_and_values(tmp_path):
    """Its rows are not moved, and without `key_length` a head has an equal share."""
    data = {key.replace("qwen3", "qwen2"): value for key, value in g.HYPERPARAMETERS.items()}
    for name in ("key_length", "value_length"):
        del data[f"qwen2.attention.{name}"]
    pairs = [g.pair("general.architecture", g.STRING, "qwen2")]
    pairs += [g.pair(key, *value) for key, value in data.items()]
    rows = {"q": 32, "k": 16, "v": 16}
    tensors = {name: one for name, one in g.TENSORS.items() if "_norm.weight" not in name}
    tensors |= {name: g.TENSORS[name] for name in ("blk.0.attn_norm.weight", "output_norm.weight")}
    tensors |= {"blk.0.ffn_norm.weight": ((32,), 0), "blk.0.attn_output.weight": ((32, 32), 1)}
    tensors |= {f"blk.0.attn_{one}.weight": ((count, 32), 0) for one, count in rows.items()}
    with pytest.raises(InputError, match=r"missing 'blk\.0\.attn_q\.bias'"):
        opened(tmp_path, g.container(pairs, *g.laid_out(tensors)))
    tensors |= {f"blk.0.attn_{one}.bias": ((count,), 0) for one, count in rows.items()}
    infos, zeros = g.laid_out(tensors)
    # The last tensor is the bias of the values; 16 numbers end the file.
    bias = np.arange(16, dtype="<f4")
    checkpoint = opened(tmp_path, g.container(pairs, infos, zeros[:-64] + bias.tobytes()))
    assert (checkpoint.architecture, checkpoint.model) == ("qwen2", "llama")
    assert checkpoint.config.head_dim == 8
    found = checkpoint.tensor("model.layers.0.self_attn.v_proj.bias")
    np.testing.assert_array_equal(found, bias)


def test_a_folder_with_a_gguf_file_says_what_to_give(tmp_path):
    (tmp_path / "m.gguf").write_bytes(g.model())
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(InputError):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path / "m.gguf").config == CONFIG
