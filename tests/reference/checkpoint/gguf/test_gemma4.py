"""GGUF files of Gemma 4: keys, arrays by layer, tensors, the tokenizer. By hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.gemma4_config import Gemma4Config
from lockstep.reference.ops import rope_frequencies_proportional
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests import gguf_bytes as g
from tests.gguf_gemma4_bytes import (
    BOS,
    EXPERT_KEYS,
    EXPERTS,
    MERGES,
    NO_BOS,
    OTHER_MERGES,
    TOKENS,
    layer,
    model,
    vocabulary,
)

CONFIG = Gemma4Config(
    vocab_size=10,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    global_head_dim=16,
    num_global_key_value_heads=1,
    attention_k_eq_v=False,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    global_rope_theta=1e6,
    partial_rotary_factor=0.25,
    tie_word_embeddings=True,
    max_position_embeddings=128,
    sliding_window=9,
    layer_types=("sliding_attention", "full_attention") * 2,
    final_logit_softcapping=30.0,
    enable_moe_block=False,
    num_experts=0,
    top_k_experts=0,
    moe_intermediate_size=0,
    hidden_size_per_layer_input=32,
    vocab_size_per_layer_input=10,
    num_kv_shared_layers=2,
    use_double_wide_mlp=True,
)


def opened(tmp_path: Path, data: bytes, **options):
    path = tmp_path / "x.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return open_checkpoint(path, **options)


def dense(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the changes that make every layer own its keys and its MLP single."""
    own = {"attention.shared_kv_layers": (g.U32, 0), "feed_forward_length": (g.U32, 64)}
    return own | (changes or {})


def dense_layers() -> dict[str, Any]:
    found = {}
    for number in (2, 3):
        found |= {f"blk.{number}.{name}": shape for name, shape in layer(number - 2).items()}
    return found


def test_the_config(tmp_path):
    checkpoint = opened(tmp_path, model())
    assert checkpoint.config == CONFIG
    assert (checkpoint.architecture, checkpoint.model) == ("gemma4_text", "gemma4")
    assert checkpoint.warnings == []
    assert checkpoint.tensor("model.layers.3.layer_scalar").shape == (1,)
    assert checkpoint.tensor("model.embed_tokens_per_layer.weight").shape == (10, 128)
    assert not checkpoint.has("model.layers.2.self_attn.k_proj.weight")


def test_what_llama_cpp_takes_where_keys_are_absent(tmp_path):
    absent = ("rope.freq_base", "rope.freq_base_swa", "attention.shared_kv_layers")
    absent += ("rope.dimension_count", "rope.dimension_count_swa")
    wide = {f"blk.{number}.attn_k.weight": (4 * (8, 16)[number % 2], 32) for number in range(4)}
    wide |= {name.replace("_k.", "_v."): shape for name, shape in wide.items()}
    keys = dense(dict.fromkeys(absent) | {"attention.head_count_kv": None})
    config = opened(tmp_path, model(keys, dense_layers() | wide)).config
    assert (config.rope_theta, config.global_rope_theta) == (1e4, 1e4)
    assert (config.num_key_value_heads, config.num_global_key_value_heads) == (4, 4)
    assert config.num_kv_shared_layers == 0 and not config.use_double_wide_mlp


def test_the_same_for_all_layers_needs_no_array(tmp_path):
    keys = {"feed_forward_length": (g.U32, 64), "attention.head_count": (g.U32, [4] * 4)}
    single = {f"blk.{n}.{name}": shape for n in (2, 3) for name, shape in layer(1).items()
              if name.startswith("ffn_") and "norm" not in name}  # fmt: skip
    config = opened(tmp_path, model(keys, single)).config
    assert config.num_attention_heads == 4 and not config.use_double_wide_mlp


def test_no_values_on_full_layers(tmp_path):
    config = opened(tmp_path, model(tensors={"blk.1.attn_v.weight": None})).config
    assert config.attention_k_eq_v


def test_a_cap_of_zero_is_none(tmp_path):
    keys = {"final_logit_softcapping": (g.F32, 0.0)}
    assert opened(tmp_path, model(keys)).config.final_logit_softcapping is None


def test_experts_in_one_stack_and_in_two(tmp_path):
    every = {f"blk.{n}.{name}": shape for n in range(4) for name, shape in EXPERTS.items()}
    halves = {
        f"blk.{n // 2}.ffn_{('gate', 'up')[n % 2]}_exps.weight": (6, 32, 32) for n in range(8)
    }
    gone = {f"blk.{n}.ffn_gate_up_exps.weight": None for n in range(4)}
    for tensors in (every, every | gone | halves):
        checkpoint = opened(tmp_path, model(EXPERT_KEYS, tensors))
        config = checkpoint.config
        assert config.enable_moe_block and config.moe_intermediate_size == 32
        assert (config.num_experts, config.top_k_experts) == (6, 2)
        up = checkpoint.stored("model.layers.0.experts.up_proj.weight")
        assert (up.shape, up.nbytes) == ((6, 32, 32), 4 * 6 * 32 * 32)
        assert checkpoint.tensor("model.layers.0.experts.gate_proj.weight").shape == (6, 32, 32)
        assert checkpoint.tensor("model.layers.0.router.per_expert_scale").shape == (6,)


@pytest.mark.parametrize("pairs", [1, 7, 49, 98, 256])
def test_every_number_of_turning_pairs_comes_through(pairs, tmp_path):
    """1/49 * 49 is less than 1 in float64: the part must not lose a pair by that."""
    for turned in {0, 1, pairs // 3, pairs - 1, pairs}:
        divisors = [1.0] * turned + [1e30] * (pairs - turned)
        keys = {f"attention.{one}_length": (g.U32, 2 * pairs) for one in ("key", "value")}
        keys["rope.dimension_count"] = (g.U32, 2 * pairs)
        full = {f"blk.{n}.attn_q.weight": (8 * pairs, 32) for n in (1, 3)}
        full |= {f"blk.{n}.attn_output.weight": (32, 8 * pairs) for n in (1, 3)}
        full |= {f"blk.{n}.attn_q_norm.weight": (2 * pairs,) for n in (1, 3)}
        full |= {f"blk.1.attn_{one}.weight": (2 * pairs, 32) for one in "kv"}
        full["blk.1.attn_k_norm.weight"] = (2 * pairs,)
        part = opened(tmp_path, model(keys, full, divisors=divisors)).config.partial_rotary_factor
        found = rope_frequencies_proportional(theta=1e4, dims=2 * pairs, partial_rotary_factor=part)
        assert np.count_nonzero(found) == turned


def test_keys_that_nobody_needs_are_mentioned(tmp_path):
    idle = {"blk.2.attn_k.weight": (16, 32), "blk.3.attn_k_norm.weight": (16,)}
    checkpoint = opened(tmp_path, model(tensors=idle))
    assert checkpoint.config == CONFIG
    assert checkpoint.warnings == [
        "tensors not used, because these layers take their keys and values from an earlier one: "
        "'blk.2.attn_k.weight', 'blk.3.attn_k_norm.weight'"
    ]


def test_the_tokenizer(tmp_path):
    """BOS always, merges, spaces as U+2581, bytes for other characters; ends by their names."""
    path = tmp_path / "x.gguf"
    path.write_bytes(vocabulary(MERGES, BOS, NO_BOS))
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("ab a\n<turn|>") == [2, 5, 7, 3, 9 + 10, 6]
    assert tokenizer.decode([2, 5, 7, 3, 9 + 10]) == "ab a\n"
    assert open_checkpoint(path).generation.eos_token_ids == {1, 6, 8}


@pytest.mark.parametrize(
    "data, core",
    [
        (vocabulary(BOS), "tokenizer.ggml.merges must be an array of strings (found nothing)"),
        (vocabulary(MERGES), "adds BOS and has no tokenizer.ggml.bos_token_id"),
        (vocabulary(BOS, OTHER_MERGES), "merge refers to unknown token 'ba'"),
        (vocabulary(MERGES, BOS, tokens=["a"] * 10), "duplicate token 'a' (ids 0 and 1)"),
        (vocabulary(MERGES, BOS, tokens=TOKENS), "byte_fallback needs the token '<0x00>'"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_refused(data, core, tmp_path, refuses):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    refuses(lambda: load_tokenizer(path), core)
