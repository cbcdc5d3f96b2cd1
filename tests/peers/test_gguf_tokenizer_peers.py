"""Tokenizers out of GGUF files, against those that were written into them, and whole models."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
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

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.witnesses import build, build_gpt2, gguf_files
from tests.witnesses.runners import ENGINES, Runner

DEMO = Path(__file__).parents[2] / "parity" / "demo" / "checkpoint"
Writes = Callable[[gguf.GGUFWriter], None]
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
        pattern = Regex(QWEN if "qwen" in pre else LLAMA)
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


def test_a_whole_gpt2(seed_for, judge, tmp_path):
    """The model and its tokenizer from one file."""
    seed, theirs = seed_for("gguf gpt2, whole"), trained("gpt-2")
    theirs.save(str(tmp_path / "tokenizer.json"))
    sizes = {"vocab_size": theirs.get_vocab_size(), "n_positions": 96}
    model = build_gpt2.random_model(seed, **build_gpt2.PACKABLE | sizes)
    add, end = gguf_files.byte_level_tokenizer(tmp_path, pre="gpt-2"), "<|endoftext|>"

    def whole(writer: gguf.GGUFWriter) -> None:
        add(writer)
        writer.add_bos_token_id(theirs.token_to_id(end))
        writer.add_eos_token_id(theirs.token_to_id(end))

    path = tmp_path / "m.gguf"
    held = gguf_files.write_gguf(path, model, "Q8_0", tokenizer=whole)
    ids = load_tokenizer(path).encode("we'll be 12345 a test")
    assert ids == theirs.encode("we'll be 12345 a test").ids
    assert open_checkpoint(path).generation.eos_token_ids == {theirs.token_to_id(end)}
    expected = build.logits(gguf_files.loaded(model, held), np.array([ids]))
    for engine in ENGINES:
        judge(engine, "gguf gpt2, whole", Runner(engine, path).logits(np.array([ids])), expected)


def sentencepiece_tokenizer() -> tuple[sentencepiece.SentencePieceProcessor, Writes]:
    """Train a model with bytes; return it, and what writes it into a file."""
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

    return theirs, add


def test_sentencepiece(tmp_path):
    """SentencePiece itself says what each text is."""
    theirs, add = sentencepiece_tokenizer()
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
