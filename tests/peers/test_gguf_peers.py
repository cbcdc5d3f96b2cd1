"""GGUF files that the gguf package writes, against that package, transformers and SentencePiece."""

import io
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.ops import dequantize
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.witnesses import build, build_qwen3_moe, gguf_files
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

WIDE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
KINDS = ("F32", "F16", "BF16", *BLOCKS)
ROPES = {
    "plain": {"rope_type": "default", "rope_theta": 5e5},
    "llama3": {
        **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    },
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
        "original_max_position_embeddings": 16,
    },
}
SIZES = {
    **{"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 130},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 64},
}
HARD = (
    *("hello world", "Hello, World! it's we'll I'D", "  leading", "trailing  ", "a\nb\n\n c\t\td"),
    *(
        "\\n no newline",
        "é e\u0301 ﬁ",
        "😀 👨‍👩‍👧 🇩🇪",
        "12345 1 22 333 4444",
        "日本語テキスト",
        "a" * 50,
    ),
    *("<|im_start|>user\nhi<|im_end|>\n", "   \n  x", "$100 + 5 = <105> ^~|", "\r\n\r\n x", ""),
    *("<think>hm</think>", "\u200b zero", "мир труд", "x\u00a0y", " <|im_end|> "),
)


def random_model(kind, config, seed: int):
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(build._spread(name, torch.randn(parameter.shape, generator=generator)))
    return model


def compare(model, path: Path, types, seed: int, row: str, judge) -> None:
    """Write a model, and hold every engine against transformers on the values of the file."""
    gguf_files.loaded(model, gguf_files.write_gguf(path, model, types, seed=seed))
    hold(model, path, seed, row, judge)


def hold(model, path: Path, seed: int, row: str, judge) -> None:
    tokens = build.prompts(seed, model.config.vocab_size)
    expected, (ids, seen) = build.logits(model, tokens), build.greedy_unequal(model, tokens)
    for engine in ENGINES:
        runner = Runner(engine, path)
        judge(engine, row, runner.logits(tokens), expected)
        judge(engine, f"{row}, cached", runner.chunked(tokens, [3, 1, 35, 1]), expected)
        lengths = np.array([build.PROMPT, build.SHORT])
        same_tokens(runner.greedy(tokens, build.GREEDY, lengths)[0], ids, seen)


@pytest.mark.parametrize("kind", KINDS)
def test_qwen3(kind, tied, seed_for, judge, tmp_path):
    seed = seed_for("gguf", kind, tied)
    width = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
    sizes = build.SMALL | (width if kind in WIDE else {"head_dim": 32})
    config = Qwen3Config(**sizes | {"tie_word_embeddings": tied})
    model = random_model(Qwen3ForCausalLM, config, seed)
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf {kind}", judge)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("biased", [False, True])
def test_llama(rope, biased, seed_for, judge, tmp_path):
    seed = seed_for("gguf llama", rope, biased)
    switches = {"attention_bias": biased, "mlp_bias": biased, "tie_word_embeddings": biased}
    config = LlamaConfig(**SIZES | switches | {"rope_parameters": ROPES[rope]})
    model = random_model(LlamaForCausalLM, config, seed)
    kind = ("Q8_0", "Q4_0", "BF16", "Q5_1", "IQ4_NL")[seed % 5]
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf llama, {rope}", judge)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_1", "IQ4_NL", "MXFP4", "Q4_K", "Q6_K"])
def test_qwen3_moe(kind, seed_for, judge, tmp_path):
    """Stacks of experts: repacked on MLX, or expanded a layer at a time."""
    seed = seed_for("gguf moe", kind)
    width = {"hidden_size": 256, "moe_intermediate_size": 256} if kind in WIDE else {}
    width |= {"num_attention_heads": 8, "head_dim": 32} if kind in WIDE else {}
    base = build_qwen3_moe.PACKABLE | {"mlp_only_layers": []} | width
    tokens = build.prompts(seed, base["vocab_size"])
    for attempt in range(40):
        model = build_qwen3_moe.random_model(seed + attempt, **base)
        path = tmp_path / f"{attempt}.gguf"
        held = gguf_files.write_gguf(path, model, lambda name: router(name) or kind, seed=seed)
        gguf_files.loaded(model, held)
        if build_qwen3_moe.settled(model, tokens):
            break
    hold(model, path, seed, f"gguf moe, {kind}", judge)


def router(name: str) -> str | None:
    """llama.cpp keeps routers in float32."""
    return "F32" if name.endswith("mlp.gate.weight") else None


def test_mistral(seed_for, judge, tmp_path):
    seed = seed_for("gguf mistral")
    config = MistralConfig(**SIZES | {"rope_parameters": ROPES["plain"], "sliding_window": None})
    model = random_model(MistralForCausalLM, config, seed)
    compare(model, tmp_path / "m.gguf", "Q4_1", seed, "gguf mistral", judge)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_transformers_reads_the_same_file(family, seed_for, judge, tmp_path):
    """The names, the moved rows and the config, as transformers' own GGUF reader has them."""
    seed = seed_for("gguf by transformers", family)
    rope = {"rope_parameters": ROPES["plain"], "tie_word_embeddings": False}
    kinds = {"qwen3": (Qwen3ForCausalLM, Qwen3Config), "llama": (LlamaForCausalLM, LlamaConfig)}
    kind, config = kinds[family]
    # transformers' reader does not look at key_length: it takes Qwen3's usual width of a head, and
    # an equal share of the hidden width for Llama.
    heads = {"num_attention_heads": 6, "head_dim": 128 if family == "qwen3" else 16}
    model = random_model(kind, config(**SIZES | rope | heads), seed)
    path = tmp_path / "m.gguf"
    gguf_files.write_gguf(path, model, "F32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    tokens = build.prompts(seed, model.config.vocab_size)
    expected = build.logits(theirs.eval(), tokens)
    for engine in ENGINES:
        judge(
            engine, f"gguf {family} by transformers", Runner(engine, path).logits(tokens), expected
        )


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_bit_of_blocks(kind, seed_for):
    """Any bytes, the scales too: NaN and infinities in the same places."""
    blocks = np.random.default_rng(seed_for("blocks", kind)).integers(
        0, 256, (64, 4 * BLOCKS[kind][1]), np.uint8
    )
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    found = dequantize(BlockTensor(blocks, kind), rows=slice(None), dtype=np.dtype(np.float32))
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(found) & np.isnan(expected))).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_what_the_package_quantises(kind, seed_for):
    values = np.random.default_rng(seed_for("quantise", kind)).standard_normal((8, 96), np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    found = dequantize(BlockTensor(blocks, kind), rows=slice(None), dtype=np.dtype(np.float32))
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_the_container_as_the_package_reads_it(seed_for, tmp_path):
    seed = seed_for("container")
    path, add = tmp_path / "m.gguf", gguf_files.byte_level_tokenizer(DEMO, pre="qwen2", size=704)
    config = Qwen3Config(**build.SMALL | {"vocab_size": 704})
    model = random_model(Qwen3ForCausalLM, config, seed)
    gguf_files.write_gguf(path, model, "Q5_0", tokenizer=add)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == ours.metadata.keys()
    for name, field in fields.items():
        value = ours.metadata[name]
        assert (ours.array(name) if isinstance(value, Array) else value) == field.contents()
    for tensor in theirs.tensors:
        found = ours.read(tensor.name)
        assert found.shape == tuple(int(one) for one in reversed(tensor.shape))
        octets = found.blocks if isinstance(found, BlockTensor) else found
        assert octets.tobytes() == np.asarray(tensor.data).tobytes()
    assert [tensor.name for tensor in theirs.tensors] == list(ours.entries)


DEMO = Path(__file__).parents[2] / "parity" / "demo" / "checkpoint"
# As in the published tokenizer.json of Qwen3, Llama 3 and GPT-2.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
BYTES = {"add_prefix_space": False, "use_regex": False}


def corpus() -> list[str]:
    lines = ["hello world it's we'll be 12345 a test of the tokenizer\n\n café naïve"] * 5
    return lines + list(HARD) * 3 + ["the quick brown fox jumps over the lazy dog. " * 3] * 3


def trained(pre: str) -> Tokenizer:
    """Train a byte-level tokenizer as the models of a family have it."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pattern = Regex(QWEN if pre == "qwen2" else LLAMA)
        parts = [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(**BYTES)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 420, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(**options))
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return tokenizer


def write_tokenizer(path: Path, add) -> None:
    """Write a file of a tokenizer and one small tensor."""
    writer = gguf.GGUFWriter(path, "qwen3")
    add(writer)
    writer.add_tensor("x", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_byte_level_tokenizers(pre, tmp_path):
    theirs = trained(pre)
    theirs.save(str(tmp_path / "tokenizer.json"))
    add = gguf_files.byte_level_tokenizer(tmp_path, pre=pre)

    def with_bos(writer: gguf.GGUFWriter) -> None:
        add(writer)
        writer.add_bos_token_id(theirs.token_to_id("<|endoftext|>"))

    write_tokenizer(tmp_path / "m.gguf", with_bos)
    ours = load_tokenizer(tmp_path / "m.gguf")
    before = [theirs.token_to_id("<|endoftext|>")] if pre == "llama-bpe" else []
    for text in HARD:
        ids = theirs.encode(text).ids
        assert ours.encode(text) == before + ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.size == theirs.get_vocab_size()


def test_sentencepiece(tmp_path):
    """SentencePiece itself trains a model with bytes, and says what each text is."""
    trained, kinds = io.BytesIO(), gguf.TokenType
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.replace("\n", " ") for text in corpus() if text]),
        model_writer=trained,
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        minloglevel=2,
        num_threads=1,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    pieces = range(theirs.vocab_size())

    def kind(piece: int) -> int:
        if theirs.is_unknown(piece):
            return kinds.UNKNOWN
        if theirs.is_control(piece):
            return kinds.CONTROL
        return kinds.BYTE if theirs.is_byte(piece) else kinds.NORMAL

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([theirs.id_to_piece(piece) for piece in pieces])
        writer.add_token_scores([theirs.get_score(piece) for piece in pieces])
        writer.add_token_types([kind(piece) for piece in pieces])
        writer.add_bos_token_id(theirs.bos_id())
        writer.add_unk_token_id(theirs.unk_id())

    write_tokenizer(tmp_path / "m.gguf", add)
    ours = load_tokenizer(tmp_path / "m.gguf")
    for text in HARD:
        if text:
            ids = theirs.encode(text)
            assert ours.encode(text) == [theirs.bos_id(), *ids]
            assert ours.decode(ids) == theirs.decode(ids)


def test_the_demo_speaks_the_same(seed_for, tmp_path):
    """A whole model with its tokenizer and its template, from one file."""
    settings = json.loads((DEMO / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
    folder = load_tokenizer(DEMO)
    add = gguf_files.byte_level_tokenizer(DEMO, pre="qwen2", size=704)

    def whole(writer: gguf.GGUFWriter) -> None:
        add(writer)
        writer.add_eos_token_id(min(folder.eos_token_ids))
        writer.add_chat_template(template)

    path = tmp_path / "demo.gguf"
    gguf_files.write_gguf(path, build.truth(DEMO), "F32", tokenizer=whole)
    chat = [{"role": "user", "content": "Hello"}]
    found = load_tokenizer(path)
    assert found.encode_chat(chat) == folder.encode_chat(chat)
    assert (
        found.eos_token_ids
        == folder.eos_token_ids
        == open_checkpoint(path).generation.eos_token_ids
    )
    assert settings
    tokens = np.array([found.encode_chat(chat)])
    one, other = (Runner("reference", source).greedy(tokens, 12)[0] for source in (path, DEMO))
    np.testing.assert_array_equal(one, other)
