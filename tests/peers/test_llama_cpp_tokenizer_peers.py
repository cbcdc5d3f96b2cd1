"""Tokenizers out of GGUF files: our ids against those of llama.cpp's own tokenizer."""

from pathlib import Path

import gguf
import pytest

from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.peers.test_gguf_tokenizer_peers import (
    DEMO,
    HARD,
    sentencepiece_tokenizer,
    trained,
    write_tokenizer,
)
from tests.witnesses import gguf_files, llama_cpp_runs

COMPOSED, DECOMPOSED = "é", "e\u0301"


def with_bos(folder: Path, pre: str, bos: int):
    add = gguf_files.byte_level_tokenizer(folder, pre=pre)

    def all_of_it(writer: gguf.GGUFWriter) -> None:
        add(writer)
        writer.add_bos_token_id(bos)

    return all_of_it


def written(folder: Path, pre: str) -> Path:
    theirs = trained(pre)
    theirs.save(str(folder / "tokenizer.json"))
    add = with_bos(folder, pre, theirs.token_to_id("<|endoftext|>"))
    write_tokenizer(folder / "m.gguf", add)
    return folder / "m.gguf"


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "deepseek-r1-qwen", "llama-bpe"])
def test_byte_level_tokenizers(pre, tmp_path):
    """Every id, and the BOS of its own accord. `qwen2`: of text that is normalised already."""
    path = written(tmp_path, pre)
    ours = load_tokenizer(path)
    texts = [text for text in HARD if pre != "qwen2" or DECOMPOSED not in text]
    assert [ours.encode(text) for text in texts] == llama_cpp_runs.token_ids(path, texts)


def test_sentencepiece(tmp_path):
    path, (_, add) = tmp_path / "m.gguf", sentencepiece_tokenizer()
    write_tokenizer(path, add)
    ours, texts = load_tokenizer(path), [text for text in HARD if text]
    assert [ours.encode(text) for text in texts] == llama_cpp_runs.token_ids(path, texts)


def test_the_tokenizer_of_the_demo(tmp_path):
    path = tmp_path / "m.gguf"
    write_tokenizer(path, gguf_files.byte_level_tokenizer(DEMO, pre="qwen2", size=704))
    ours, texts = load_tokenizer(path), [text for text in HARD if DECOMPOSED not in text]
    assert [ours.encode(text) for text in texts] == llama_cpp_runs.token_ids(path, texts)


def test_it_does_not_normalise_text_for_qwen2(tmp_path):
    """The tokenizer.json says NFC. There llama.cpp is the one that is off."""
    path = written(tmp_path, "qwen2")
    theirs, ours = trained("qwen2"), load_tokenizer(path)
    composed, decomposed = llama_cpp_runs.token_ids(path, [COMPOSED, DECOMPOSED])
    assert theirs.encode(COMPOSED).ids == theirs.encode(DECOMPOSED).ids == composed
    assert ours.encode(COMPOSED) == ours.encode(DECOMPOSED) == composed
    assert decomposed != composed
