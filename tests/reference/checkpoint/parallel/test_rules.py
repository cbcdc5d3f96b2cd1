"""Which weight is cut along what. By hand, from the papers' and the engines' tables."""

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of, taker
from tests.reference.parallel.test_model import WITNESSES

LAYER = "model.layers.3"
CUT = {
    f"{LAYER}.self_attn.q_proj": ("rows", "queries", 1),
    f"{LAYER}.self_attn.k_proj": ("rows", "keys", 1),
    f"{LAYER}.self_attn.v_proj": ("rows", "keys", 1),
    f"{LAYER}.self_attn.o_proj": ("columns", "queries", 1),
    f"{LAYER}.mlp.gate_proj": ("rows", "inner", 1),
    f"{LAYER}.mlp.down_proj": ("columns", "inner", 1),
    f"{LAYER}.mlp.experts.up_proj": ("rows", "inner", 1),
    f"{LAYER}.experts.down_proj": ("columns", "inner", 1),
    "transformer.h.0.attn.c_attn": ("rows", "queries", 3),
    "transformer.h.0.attn.c_proj": ("columns", "queries", 1),
    "transformer.h.0.mlp.c_fc": ("rows", "inner", 1),
    "transformer.h.0.mlp.c_proj": ("columns", "inner", 1),
    "transformer.wte": ("rows", "words", 1),
    "model.embed_tokens_per_layer": ("rows", "words", 1),
    "lm_head": ("rows", "words", 1),
}
WHOLE = (
    "model.norm", f"{LAYER}.self_attn.q_norm", f"{LAYER}.mlp.gate", f"{LAYER}.router.proj",
    "transformer.wpe", "transformer.h.0.ln_1", f"{LAYER}.per_layer_input_gate",
    "model.per_layer_model_projection", f"{LAYER}.post_attention_layernorm",
)  # fmt: skip

KINDS = (
    "models/tied_bfloat16", "gpt2/original", "gemma4/effective", "gemma4/sparse", "qwen3_moe/fused",
    "llama/qwen2_yarn",
)  # fmt: skip


@pytest.mark.parametrize("module", CUT)
def test_what_is_cut(module):
    rule = rule_of(module)
    assert rule is not None and (rule.axis, rule.unit, rule.segments) == CUT[module]


@pytest.mark.parametrize("module", WHOLE)
def test_what_every_rank_has_whole(module):
    assert rule_of(module) is None


def test_inner_numbers_are_cut_where_the_matrix_that_takes_them_can_be():
    assert taker(f"{LAYER}.mlp.up_proj") == f"{LAYER}.mlp.down_proj"
    assert taker("transformer.h.0.mlp.c_fc") == "transformer.h.0.mlp.c_proj"
    assert taker(f"{LAYER}.experts.down_proj") == f"{LAYER}.experts.down_proj"


@pytest.mark.parametrize("name", KINDS)
def test_no_large_matrix_of_an_attention_or_an_mlp_is_left_whole(name):
    """By hand: what is whole, by the last part of its path."""
    checkpoint = open_checkpoint(WITNESSES / name)
    matrices = [one.removesuffix(".weight") for one in checkpoint.names
                if len(checkpoint.stored(one).shape) > 1]  # fmt: skip
    left = {one.rpartition(".")[2] for one in matrices if rule_of(one) is None}
    assert left <= {"wpe", "gate", "proj", "per_layer_input_gate", "per_layer_projection",
                    "per_layer_model_projection"}  # fmt: skip
    assert len(matrices) > len(left)
