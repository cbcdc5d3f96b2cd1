"""GGUF files of Gemma 4 that are sound and yet no model, each with the message it must get.

Truth: by hand. Each file breaks one rule; the unbroken one is read in `test_gemma4.py`.
"""

from typing import Any

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests import gguf_bytes as g
from tests.gguf_gemma4_bytes import EXPERT_KEYS, model

ROUTER = {"blk.0.ffn_gate_inp.weight": (6, 32)}


def spoilt(key: str, kind: int, value: Any) -> bytes:
    return model({key: None if value is None else (kind, value)})


# id: the file, and the core of the message.
CASES: dict[str, tuple[bytes, str]] = {
    "no layers": (spoilt("block_count", g.U32, 0), "'gemma4.block_count' must be a positive"),
    "2**31 layers": (spoilt("block_count", g.U32, 2**31), "'gemma4.block_count' must be a pos"),
    "no pattern": (
        spoilt("attention.sliding_window_pattern", g.BOOL, None),
        "'gemma4.attention.sliding_window_pattern' must be an array of bools",
    ),
    "a short pattern": (
        spoilt("attention.sliding_window_pattern", g.BOOL, [1, 0]),
        "sliding_window_pattern' lists 2 layers, it must list 4 (gemma4.block_count=4)",
    ),
    "a long pattern": (
        spoilt("attention.sliding_window_pattern", g.BOOL, [0] * 99_999),
        "lists 99999 layers, it must list 4",
    ),
    "a pattern of numbers": (
        spoilt("attention.sliding_window_pattern", g.U32, [1, 0, 1, 0]),
        "must be an array of bools, one for each layer (found 1)",
    ),
    "a pattern of one number": (
        spoilt("attention.sliding_window_pattern", g.U32, 2),
        "must be an array of bools, one for each layer (found 2)",
    ),
    "the last layer slides": (
        spoilt("attention.sliding_window_pattern", g.BOOL, [1, 0, 0, 1]),
        "sliding_window_pattern' must be false for the last layer (found true)",
    ),
    "all without keys": (
        spoilt("attention.shared_kv_layers", g.U32, 4),
        "'gemma4.attention.shared_kv_layers' must be an integer from 0 to 3 (found 4)",
    ),
    "no owner": (
        model({"attention.shared_kv_layers": (g.U32, 3), "feed_forward_length": (g.U32, 64)}),
        "must leave a layer of each kind with keys of its own",
    ),
    "widths that differ": (
        spoilt("feed_forward_length", g.U32, [64, 96, 128, 128]),
        "'gemma4.feed_forward_length' must be 64 for layer 1 (found 96)",
    ),
    "one that is not double": (
        spoilt("feed_forward_length", g.U32, [64, 64, 96, 128]),
        "'gemma4.feed_forward_length' must be 128 for layer 2 (found 96)",
    ),
    "a width of text": (
        spoilt("feed_forward_length", g.STRING, ["64"] * 4),
        "'gemma4.feed_forward_length' must be a positive integer or an array of them",
    ),
    "no width": (spoilt("feed_forward_length", g.U32, None), "(found nothing)"),
    "heads that differ": (
        spoilt("attention.head_count", g.U32, [4, 4, 4, 8]),
        "'gemma4.attention.head_count' differs between layers",
    ),
    "groups that differ": (
        spoilt("attention.head_count_kv", g.U32, [2, 1, 1, 1]),
        "'gemma4.attention.head_count_kv' must be the same for all layers of a kind (found 1)",
    ),
    "groups of text": (
        spoilt("attention.head_count_kv", g.STRING, "2"),
        "'gemma4.attention.head_count_kv' must be a positive integer",
    ),
    "no narrow width": (
        spoilt("attention.key_length_swa", g.U32, None),
        "'gemma4.attention.key_length_swa' must be an integer",
    ),
    "wide values": (
        spoilt("attention.value_length_swa", g.U32, 16),
        "'gemma4.attention.value_length_swa' must be 8 (found 16)",
    ),
    "odd heads": (spoilt("attention.key_length", g.U32, 15), "value_length' must be 15 (found 16)"),
    "part of a narrow head": (
        spoilt("rope.dimension_count_swa", g.U32, 4),
        "'gemma4.rope.dimension_count_swa' must be 8 (found 4)",
    ),
    "base of text": (
        spoilt("rope.freq_base_swa", g.STRING, "1"),
        "'gemma4.rope.freq_base_swa' must be a number (found '1')",
    ),
    "base NaN": (spoilt("rope.freq_base", g.F32, float("nan")), "(found nan)"),
    "no cap said": (
        spoilt("final_logit_softcapping", g.F32, None),
        "'gemma4.final_logit_softcapping' must be a number, 0 for no cap (found nothing)",
    ),
    "cap NaN": (spoilt("final_logit_softcapping", g.F32, float("nan")), "(found nan)"),
    "no window": (
        spoilt("attention.sliding_window", g.U32, None),
        "'gemma4.attention.sliding_window' must be a positive integer",
    ),
    "stretched": (
        spoilt("rope.scaling.type", g.STRING, "linear"),
        "unknown metadata 'gemma4.rope.scaling.type'",
    ),
    "no divisors": (model(divisors=[]), "missing rope_freqs.weight: it says which pairs turn"),
    "few divisors": (
        model(divisors=[1.0] * 4),
        "rope_freqs.weight is F32 [4], it must be F32 [8]",
    ),
    "other divisors": (
        model(divisors=[1.0, 2.0, *[1e30] * 6]),
        "rope_freqs.weight must be 1 for the pairs that turn, then 1e30 (found 2.0 at 1)",
    ),
    "divisors out of order": (model(divisors=[1e30, *[1.0] * 7]), "at 0)"),
    "divisors NaN": (model(divisors=[float("nan")] * 8), "(found nan at 0)"),
    "no scalar": (
        model(tensors={"blk.0.layer_output_scale.weight": None}),
        "missing 'blk.0.layer_output_scale.weight'",
    ),
    "values of a sliding layer": (
        model(tensors={"blk.0.attn_v.weight": None}),
        "missing 'blk.0.attn_v.weight'",
    ),
    "fused queries": (
        model(tensors={"blk.0.attn_qkv.weight": (64, 32)}),
        "unknown tensors 'blk.0.attn_qkv.weight'",
    ),
    "keys of a layer too many": (
        model(tensors={"blk.9.attn_k.weight": (16, 32)}),
        "unknown tensors 'blk.9.attn_k.weight'",
    ),
    "experts without their number": (
        model(tensors=ROUTER),
        "'gemma4.expert_count' must be a positive integer",
    ),
    "more chosen than there are": (
        model(EXPERT_KEYS | {"expert_used_count": (g.U32, 7)}, ROUTER),
        "top_k_experts=7, but num_experts=6",
    ),
    "a small table of inputs": (
        model(tensors={"per_layer_token_embd.weight": (9, 128)}),
        "'vocab_size_per_layer_input' must be at least vocab_size=10",
    ),
    "no table": (
        model(tensors={"token_embd.weight": None}),
        "'gemma4.vocab_size' must be a positive integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused(case, tmp_path, refuses):
    data, core = CASES[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    refuses(lambda: open_checkpoint(path), core)
