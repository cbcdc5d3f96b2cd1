"""GGUF files that are sound and yet no model (G22 to G31), each with the message it must get.

Truth: by hand. Each file breaks one rule; the unbroken ones are read by the first test.
"""

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests import gguf_bytes as g

KEY, NAME = g.pair("a", g.U8, 1), "general.architecture"


def pairs(*found: bytes, **options) -> bytes:
    """Return a file of metadata and one small tensor."""
    return g.container(list(found), [g.info("x", [8])], bytes(32), **options)


def model(key: str, value, kind: int = g.U32) -> bytes:
    return g.model({f"qwen3.{key}": None if value is None else (kind, value)})


def vocabulary(*changes: bytes, tokens=tuple("abcdefghij"), kind: str = "gpt2") -> bytes:
    extra = [
        g.pair("tokenizer.ggml.model", g.STRING, kind),
        g.pair("tokenizer.ggml.pre", g.STRING, "gpt-2"),
        g.array("tokenizer.ggml.tokens", g.STRING, tokens),
    ]
    return g.model(extra=[*extra, *changes])


MERGES = g.array("tokenizer.ggml.merges", g.STRING, [])
NO_BOS = g.pair("tokenizer.ggml.add_bos_token", g.BOOL, 0)
SCORES = g.array("tokenizer.ggml.scores", g.F32, [0.0] * 10)

# id: the file, and the core of the message.
CASES: dict[str, tuple[bytes, str]] = {
    "G25 unknown": (
        pairs(g.pair(NAME, g.STRING, "falcon")),
        "unsupported architecture 'falcon', lla",
    ),
    "G25 WeDLM, which llama.cpp has not": (
        pairs(g.pair(NAME, g.STRING, "wedlm")),
        "unsupported architecture 'wedlm', llama or qwen2 or qwen3 or qwen3moe or gpt2 or gemma4",
    ),
    "G25 none": (pairs(KEY), "unsupported architecture null"),
    "G25 a number": (pairs(g.pair(NAME, g.U32, 3)), "unsupported architecture 3"),
    "G25 a path": (
        pairs(g.pair(NAME, g.STRING, "../qwen3")),
        "unsupported architecture '../qwen3'",
    ),
    "G25 a module": (pairs(g.pair(NAME, g.STRING, "config_common")), "unsupported architecture"),
    "G26 no heads": (
        model("attention.head_count", 0),
        "field 'qwen3.attention.head_count' must be a",
    ),
    "G26 no key heads": (
        model("attention.head_count_kv", 0),
        "'qwen3.attention.head_count_kv' must",
    ),
    "G26 more key heads": (
        model("attention.head_count_kv", 8),
        "is not a multiple of num_key_value_",
    ),
    "G26 not dividing": (
        model("attention.head_count_kv", 3),
        "is not a multiple of num_key_value_he",
    ),
    "G26 2**31 layers": (
        model("block_count", 2**31),
        "field 'qwen3.block_count' must be a positive",
    ),
    "G26 no layers": (
        model("block_count", 0),
        "field 'qwen3.block_count' must be a positive integer",
    ),
    "G26 layers missing": (
        model("block_count", None),
        "'qwen3.block_count' must be a positive integer",
    ),
    "G26 a float": (
        model("block_count", 1.0, g.F32),
        "field 'qwen3.block_count' must be a positive",
    ),
    "G26 text": (
        model("block_count", "1", g.STRING),
        "field 'qwen3.block_count' must be a positive",
    ),
    "G26 odd head": (
        g.model(
            {"qwen3.attention.key_length": (g.U32, 15), "qwen3.attention.value_length": (g.U32, 15)}
        ),
        "head_dim=15 is odd",
    ),
    "G26 rope dims": (model("rope.dimension_count", 8), "'qwen3.rope.dimension_count' must be 16"),
    "G26 wide values": (
        model("attention.value_length", 32),
        "'qwen3.attention.value_length' must be 16",
    ),
    "G26 eps -1": (
        model("attention.layer_norm_rms_epsilon", -1.0, g.F32),
        "rms_epsilon' must be a num",
    ),
    "G26 eps NaN": (model("attention.layer_norm_rms_epsilon", float("nan"), g.F32), "(found nan)"),
    "G26 base 0": (
        model("rope.freq_base", 0.0, g.F32),
        "field 'qwen3.rope.freq_base' must be a number",
    ),
    "G26 base inf": (model("rope.freq_base", float("inf"), g.F32), "(found inf)"),
    "G26 context 0": (
        model("context_length", 0),
        "field 'qwen3.context_length' must be a positive",
    ),
    "G26 experts": (
        model("expert_count", 4),
        "unknown metadata 'qwen3.expert_count'; pass --ignore-c",
    ),
    "G26 scaling": (
        model("rope.scaling.type", "mrope", g.STRING),
        "rope scaling 'mrope' is not read",
    ),
    "G27 layers": (
        model("block_count", 2),
        "metadata disagree with tensors: missing 'blk.1.attn_norm",
    ),
    "G27 width": (
        model("embedding_length", 64),
        "'token_embd.weight' has shape [10, 32], metadata gi",
    ),
    "G27 unknown": (g.model(tensors={"blk.9.x": ((8,), 0)}), "unknown tensors 'blk.9.x'"),
    "G27 missing": (
        g.model(tensors={"blk.0.ffn_norm.weight": None}),
        "missing 'blk.0.ffn_norm.weight'",
    ),
    "G27 transposed": (
        g.model(tensors={"blk.0.ffn_up.weight": ((32, 64), 0)}),
        "'blk.0.ffn_up.weight' has shape [32, 64], metadata give [64, 32]",
    ),
    "G27 a packed norm": (
        g.model(tensors={"output_norm.weight": ((32,), 8)}),
        "'output_norm.weight' must be plain, not Q8_0",
    ),
    "G28 2 parts": (
        g.model({"split.count": (g.U16, 2), "split.no": (g.U16, 0)}),
        "is part 1 of 2, its name must end with -00001-of-00002.gguf",
    ),
    "G28 no number": (
        g.model({"split.count": (g.U16, 2)}),
        "split.no must be an integer from 0 to 1 (found nothing)",
    ),
    "G28 65535 parts": (
        g.model({"split.count": (g.U16, 65535)}),
        "split.count must be an integer from 0 to 1000 (found 65535)",
    ),
    "G28 text": (
        g.model({"split.count": (g.STRING, "2")}),
        "split.count must be an integer from 0 to 1000 (found '2')",
    ),
    "rope_freqs of another width": (
        g.model(tensors={"rope_freqs.weight": ((9,), 0)}),
        "rope_freqs.weight is F32 [9], it must be F32 [8]",
    ),
    "rope_freqs of zeros": (
        g.model(tensors={"rope_freqs.weight": ((8,), 0)}),
        "'rope_parameters.short_factor' must hold numbers above 0",
    ),
    "layers that differ": (
        g.model(
            {"qwen3.feed_forward_length": None},
            extra=[g.array("qwen3.feed_forward_length", g.U32, [64, 32])],
        ),
        "'qwen3.feed_forward_length' differs between layers, which is not read",
    ),
    "G22 tokens and rows": (
        vocabulary(tokens="abc"),
        "tokenizer.ggml.tokens has 3 tokens, but the emb",
    ),
    "G22 tokens of numbers": (
        g.model(extra=[g.pair("tokenizer.ggml.tokens", g.U32, 10)]),
        "tokenizer.ggml.tokens has null tokens",
    ),
    "G23 eos too large": (
        vocabulary(g.pair("tokenizer.ggml.eos_token_id", g.U32, 10)),
        "bad token id 10 in tokenizer.ggml.eos_token_id (ids go from 0 to 9)",
    ),
    "G23 eos 2**32-1": (
        vocabulary(g.pair("tokenizer.ggml.eos_token_id", g.U32, 2**32 - 1)),
        "429496",
    ),
    "G23 mask too large": (
        vocabulary(g.pair("tokenizer.ggml.mask_token_id", g.U32, 10)),
        "bad token id 10 in tokenizer.ggml.mask_token_id (ids go from 0 to 9)",
    ),
    "G23 eos -1": (vocabulary(g.pair("tokenizer.ggml.eos_token_id", g.I32, -1)), "bad token id -1"),
}
TOKENIZERS: dict[str, tuple[bytes, str]] = {
    "G22 no tokenizer": (
        g.model(),
        "tokenizer.ggml.tokens must be an array of strings (found noth",
    ),
    "G22 no merges": (
        vocabulary(),
        "tokenizer.ggml.merges must be an array of strings (found nothing",
    ),
    "G22 scores of bytes": (
        vocabulary(NO_BOS, g.array("tokenizer.ggml.scores", g.U8, [0] * 10), kind="llama"),
        "tokenizer.ggml.scores must be an array of f32",
    ),
    "G22 too few scores": (
        vocabulary(NO_BOS, g.array("tokenizer.ggml.scores", g.F32, [0.0]), kind="llama"),
        "tokenizer.ggml.scores has 1 entries for 10 tokens",
    ),
    "G22 no scores": (vocabulary(NO_BOS, kind="llama"), "a 'llama' tokenizer needs scores"),
    "G22 too few kinds": (
        vocabulary(MERGES, g.array("tokenizer.ggml.token_type", g.I32, [1])),
        "tokenizer.ggml.token_type has 1 entries for 10 tokens",
    ),
    "G22 not UTF-8": (
        vocabulary(MERGES, tokens=["a", "b", g.string(b"\xff"), *"defghij"]),
        "string 2 of 'tokenizer.ggml.tokens' is not UTF-8",
    ),
    "G22 a token twice": (
        vocabulary(MERGES, tokens="aacdefghij"),
        "duplicate token 'a' (ids 0 and 1)",
    ),
    "G22 unknown kind": (vocabulary(MERGES, kind="t5"), "unsupported tokenizer 't5'"),
    "G23 bos too large": (
        vocabulary(MERGES, g.pair("tokenizer.ggml.bos_token_id", g.U32, 10)),
        "bad token id 10, ids go from 0 to 9 (tokenizer.ggml.bos_token_id)",
    ),
    "G23 bos is added, and is none": (
        vocabulary(MERGES, g.pair("tokenizer.ggml.add_bos_token", g.BOOL, 1)),
        "adds BOS and has no tokenizer.ggml.bos_token_id",
    ),
    "G23 flag of text": (
        vocabulary(MERGES, g.pair("tokenizer.ggml.add_bos_token", g.STRING, "yes")),
        "tokenizer.ggml.add_bos_token must be a bool, not 'yes'",
    ),
    "G24 no space": (
        vocabulary(g.array("tokenizer.ggml.merges", g.STRING, ["ab"])),
        "bad merge 'ab'",
    ),
    "G24 empty": (vocabulary(g.array("tokenizer.ggml.merges", g.STRING, [""])), "bad merge ''"),
    "G24 one side": (
        vocabulary(g.array("tokenizer.ggml.merges", g.STRING, ["a "])),
        "bad merge 'a '",
    ),
    "G24 unknown token": (
        vocabulary(g.array("tokenizer.ggml.merges", g.STRING, ["a b"])),
        "merge refers to unknown token 'ab'",
    ),
    "G31 not text": (
        vocabulary(MERGES, g.pair("tokenizer.chat_template", g.U32, 1)),
        "'tokenizer.chat_template' must be text",
    ),
    "G31 too long": (
        vocabulary(MERGES, g.pair("tokenizer.chat_template", g.STRING, "x" * (1 << 20) + "x")),
        "'tokenizer.chat_template' must be text of at most 1048576 bytes",
    ),
    "pre-tokenizer": (
        vocabulary(MERGES).replace(b"gpt-2", b"gpt-9"),
        "unsupported pre-tokenizer 'gpt-9', gpt-2, qwen2",
    ),
    "SentencePiece's own table": (
        vocabulary(SCORES, g.array("tokenizer.ggml.precompiled_charsmap", g.U8, [1]), kind="llama"),
        "it has a precompiled_charsmap",
    ),
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.gguf"


def test_what_is_not_spoilt_is_read(file):
    file.write_bytes(g.model())
    assert open_checkpoint(file).warnings == []
    file.write_bytes(vocabulary(MERGES))
    assert load_tokenizer(file).encode("abba") == [0, 1, 1, 0]
    file.unlink()
    file.write_bytes(vocabulary(SCORES, NO_BOS, kind="llama"))
    assert load_tokenizer(file).decode([0, 1]) == "ab"


@pytest.mark.parametrize("case", CASES)
def test_refused(case, file, refuses):
    data, core = CASES[case]
    file.write_bytes(data)
    assert "x.gguf: " in refuses(lambda: open_checkpoint(file), core)


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizers_refused(case, file, refuses):
    data, core = TOKENIZERS[case]
    file.write_bytes(data)
    open_checkpoint(file)
    assert "x.gguf: " in refuses(lambda: load_tokenizer(file), core)


def test_every_class_is_here():
    # G29 and G30 are legal: tests/reference/ops/test_dequantize_blocks.py has them. The templates
    # of G31 that are text are in tests/reference/tokenizer/test_gguf_tokenizer.py.
    found = {case[:3] for case in [*CASES, *TOKENIZERS] if case[0] == "G"}
    assert found | {"G29", "G30"} == {f"G{i:02d}" for i in range(22, 32)}
