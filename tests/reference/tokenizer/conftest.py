"""Small tokenizers of the two families that language models use, written as their files are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ALPHABET = [*range(33, 127), *range(161, 173), *range(174, 256)]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Content = dict[str, Any]
WriteFolder = Callable[..., Path]


def byte_chars() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in a byte-level vocabulary."""
    others = iter(range(256, 256 + 68))
    return [chr(byte) if byte in ALPHABET else chr(next(others)) for byte in range(256)]


def added(number: int, text: str, *, special: bool = True) -> Content:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": special}


def tokenizer_json(
    tokens: list[str], merges: list[tuple[str, str]], added_tokens: list[Content]
) -> Content:
    """A tokenizer.json without any components."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [list(pair) for pair in merges]}
    parts = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": added_tokens, **parts, "model": model}


def byte_level_content() -> Content:
    """As Qwen3: NFC, a splitting pattern, bytes as characters, no BOS. Id 256 is 'he'."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello")]
    tokens = byte_chars() + [left + right for left, right in merges]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    specials = [added(len(tokens) + at, name) for at, name in enumerate(names)]
    specials.append(added(len(tokens) + 3, "<think>", special=False))
    content = tokenizer_json(tokens, merges, specials)
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    level["use_regex"] = False
    content["normalizer"] = {"type": "NFC"}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    content["post_processor"] = content["decoder"] = level
    return content


def sentencepiece_content() -> Content:
    """As Llama 2: '▁' for a space and before the text, bytes as <0x..>, BOS in front."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "é", "▁a", "▁▁"]
    specials = [added(number, tokens[number]) for number in range(3)]
    content = tokenizer_json(tokens, [("▁", "a"), ("▁", "▁")], specials)
    content["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [prepend, space]}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    prompt = {"Sequence": {"id": "A", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, prompt],
        "pair": [start, prompt, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    unspace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [unspace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    content["decoder"] = {"type": "Sequence", "decoders": decoders}
    return content


CONTENTS = {"byte_level": byte_level_content, "sentencepiece": sentencepiece_content}
CONFIGS = {
    "byte_level": {"eos_token": "<|im_end|>", "bos_token": None, "chat_template": CHATML},
    "sentencepiece": {
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
    },
}


def _write(folder: Path, family: str, content: object, config: object) -> Path:
    folder.mkdir(exist_ok=True)
    content = CONTENTS[family]() if content is None else content
    config = CONFIGS[family] if config is None else config
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def contents() -> dict[str, Callable[[], Content]]:
    return CONTENTS


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    """Write a model folder; `content` and `config` go in place of the family's own files."""

    def write(family: str = "byte_level", content: object = None, config: object = None) -> Path:
        return _write(tmp_path / "model", family, content, config)

    return write


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {family: _write(root / family, family, None, None) for family in CONTENTS}
