"""The tokenizer that the metadata of a GGUF file describe, written out as a tokenizer.json.

The file has the tokens, what each is, and the merges or the scores that order them. How text is cut
before that is only named (`tokenizer.ggml.pre`); `PRE` says what llama.cpp and Hugging Face do
under each name. What comes out goes through the same checks as a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.checkpoint.gguf.parts import Gguf, open_gguf
from lockstep.reference.tokenizer.settings import TEMPLATE_BYTES, ChatTemplate, Settings
from lockstep.reference.tokenizer.tokenizer_file import make_tokenizer

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# The names under which a template knows special tokens, and those of the file.
SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # spelled so in the format
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
OLD_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
FUSE = {"type": "Fuse"}
TEXT_LIMIT = 8_000_000  # characters of all tokens that are searched for their halves


@dataclass(frozen=True)
class Pre:
    """How text is cut: by one pattern after another, each within the pieces of the last."""

    patterns: tuple[str, ...]
    normalizer: str | None = None
    whole_words: bool = False  # a piece that is a token is not built of merges
    adds_bos: bool = False


LLAMA3 = Pre((WORDS + "{1,3}" + REST,), whole_words=True, adds_bos=True)
PRE = {
    "gpt-2": Pre((OLD_WORDS + r"|\s+",)),
    "qwen2": Pre((WORDS + REST,), normalizer="NFC"),
    # As llama.cpp has it: Qwen's words. It composes no letters for either name.
    "deepseek-r1-qwen": Pre((WORDS + REST,)),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", OLD_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
}


def read_gguf_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, Settings]:
    """Return the tokenizer of a GGUF file, or of the first of several: it, its special tokens and
    its chat templates.

    Raises InputError if the file has none, or one of a kind that is not read, or parts of it do
    not fit together.
    """
    described = _Described(open_gguf(path))
    kind = described.text("model")
    if kind not in READERS:
        what = f"unsupported tokenizer {show(kind)}, 'gpt2' (byte-level BPE), 'llama' and 'gemma4'"
        raise InputError(path, f"{what} are read", f"{PREFIX}model")
    content = READERS[kind](described)
    content["added_tokens"] = described.added_tokens()
    tokenizer = make_tokenizer(content, path)
    return tokenizer, Settings(path, described.special_tokens(), _templates(described.file))


class _Described:
    """What the metadata say, checked where several parts must agree."""

    def __init__(self, file: Gguf) -> None:
        self.file, self.path = file, file.path
        self.tokens: list[str] = self._list("tokens", "")
        if not self.tokens:
            raise InputError(self.path, "has no tokens", f"{PREFIX}tokens")
        self.kinds = self._as_long_as_tokens("token_type", "i")

    def value(self, name: str) -> Any:
        return self.file.metadata.get(PREFIX + name)

    def text(self, name: str) -> str | None:
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise InputError(
                self.path, f"metadata {PREFIX}{name} must be text, not {show(value, 40)}"
            )
        return value

    def flag(self, name: str, missing: bool) -> bool:
        value = self.value(name)
        if value is not None and type(value) is not bool:
            raise InputError(
                self.path, f"metadata {PREFIX}{name} must be a bool, not {show(value, 40)}"
            )
        return missing if value is None else value

    def number_of(self, name: str) -> int | None:
        """Return the id of a special token, None if the file names none."""
        number = self.value(f"{name}_token_id")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            what = f"bad token id {show(number, 40)}, ids go from 0 to {len(self.tokens) - 1}"
            raise InputError(self.path, what, f"{PREFIX}{name}_token_id")
        return number

    def scores(self) -> list[float]:
        found = self._as_long_as_tokens("scores", "f")
        if found is None:
            raise InputError(self.path, "a 'llama' tokenizer needs scores", f"{PREFIX}scores")
        return found

    def merges(self) -> list[str]:
        return self._list("merges", "")

    def kind(self, number: int) -> int:
        return NORMAL if self.kinds is None else self.kinds[number]

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The tokens but those that only fill the embedding up."""
        found: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            if self.kind(number) == UNUSED and token == f"[PAD{number}]":
                continue
            if found.setdefault(token, number) != number:
                where = f"ids {found[token]} and {number}"
                raise InputError(self.path, f"duplicate token {show(token)}", where)
        return found

    def special_tokens(self) -> dict[str, str]:
        numbers = {role: self.number_of(name) for role, name in SPECIAL.items()}
        return {role: self.tokens[n] for role, n in numbers.items() if n is not None}

    def added_tokens(self) -> list[dict[str, Any]]:
        """List the tokens that are found in a text before it is cut."""
        roles = {self.number_of(name) for name in SPECIAL.values()} if self.kinds is None else set()
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        found = []
        for number in self.vocabulary.values():
            kind = CONTROL if number in roles else self.kind(number)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN):
                special = kind != USER_DEFINED
                token = {"id": number, "content": self.tokens[number], "special": special}
                found.append(token | plain)
        return found

    def framed(self, *, adds_bos: bool, always: bool = False) -> dict[str, Any] | None:
        """Return the post-processor that puts BOS before a text and EOS after it.

        `adds_bos` holds where the file does not say, or `always`.
        """
        single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        special = {}
        for name, missing in (("bos", adds_bos), ("eos", False)):
            said = self.flag(f"add_{name}_token", missing)
            if not said and not (always and missing):
                continue
            number = self.number_of(name)
            if number is None:
                raise InputError(
                    self.path, f"adds {name.upper()} and has no {PREFIX}{name}_token_id"
                )
            text = self.tokens[number]
            special[text] = {"id": text, "ids": [number], "tokens": [text]}
            single.insert(0 if name == "bos" else 2, {"SpecialToken": {"id": text, "type_id": 0}})
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        parts = {"single": single, "pair": pair, "special_tokens": special}
        return {"type": "TemplateProcessing", **parts} if special else None

    def _list(self, name: str, kind: str) -> list:
        found = self.value(name)
        if not isinstance(found, Array) or found.kind != kind:
            needed = {"": "strings", "i": "i32", "f": "f32"}[kind]
            what = f"metadata {PREFIX}{name} must be an array of {needed}"
            raise InputError(
                self.path, what, f"found {'nothing' if found is None else show(found, 40)}"
            )
        return self.file.array(PREFIX + name)

    def _as_long_as_tokens(self, name: str, kind: str) -> list | None:
        if self.value(name) is None:
            return None
        found = self._list(name, kind)
        if len(found) != len(self.tokens):
            what = f"{PREFIX}{name} has {len(found)} entries for {len(self.tokens)} tokens"
            raise InputError(self.path, what)
        return found


def _byte_level(described: _Described) -> dict[str, Any]:
    """Return BPE over bytes, each byte written as one letter."""
    name = described.text("pre") or "default"
    if name not in PRE:
        what = f"unsupported pre-tokenizer {show(name)}, {', '.join(PRE)} are read"
        raise InputError(described.path, what, f"{PREFIX}pre")
    pre = PRE[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in pre.patterns
    ]
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "normalizer": pre.normalizer and {"type": pre.normalizer},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**letters, "use_regex": False}],
        },
        "post_processor": described.framed(adds_bos=pre.adds_bos),
        "decoder": {**letters, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": described.vocabulary,
            "merges": listed_merges(described),
            "ignore_merges": pre.whole_words,
        },
    }


def _pair(merge: str, rank: int, path: Path) -> list[str]:
    cut = merge.find(" ", 1)  # as llama.cpp: a token of a single space may come first
    if cut < 0 or cut + 1 == len(merge):
        what = f"bad merge {show(merge)}: two tokens with a space between"
        raise InputError(path, what, f"merge {rank}")
    return [merge[:cut], merge[cut + 1 :]]


def _scored(described: _Described) -> dict[str, Any]:
    """Return SentencePiece's BPE: two pieces join if they make a token, the best score first."""
    if described.value("precompiled_charsmap") is not None:
        raise InputError(described.path, "unsupported tokenizer: it has a precompiled_charsmap")
    prefix = described.flag("add_space_prefix", True)
    unknown = described.number_of("unknown")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": "▁"}] * prefix + [spaces]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix
    decoders = [back, {"type": "ByteFallback"}, FUSE, *strip]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": described.framed(adds_bos=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": described.vocabulary,
            "merges": merges_of(described),
            "unk_token": None if unknown is None else described.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": any(described.kind(n) == BYTE for n in range(len(described.tokens))),
        },
    }


def _gemma4(described: _Described) -> dict[str, Any]:
    """Return BPE over characters with merges, and over bytes where a character is no token.

    llama.cpp cuts at newlines before it merges, and Hugging Face cuts nowhere. Both put BOS before
    every text; in llama.cpp even where `add_bos_token` is false, as it was in early files.
    """
    unknown = described.number_of("unknown")
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": described.framed(adds_bos=True, always=True),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, FUSE]},
        "model": {
            "type": "BPE",
            "vocab": described.vocabulary,
            "merges": listed_merges(described),
            "unk_token": None if unknown is None else described.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def listed_merges(described: _Described) -> list[list[str]]:
    merges = described.merges()
    return [_pair(merge, rank, described.path) for rank, merge in enumerate(merges)]


def merges_of(described: _Described) -> list[list[str]]:
    """Return every way to make a token of two, the token with the best score first.

    Ties are in the order of transformers: the longer left half, then the longer right one.
    """
    vocabulary, scores = described.vocabulary, described.scores()
    if sum(map(len, vocabulary)) > TEXT_LIMIT:
        raise InputError(described.path, f"tokens of over {TEXT_LIMIT} characters together")
    found = []
    for token, number in vocabulary.items():
        if described.kind(number) != NORMAL:
            continue
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [
            (left, right) for left, right in halves if left in vocabulary and right in vocabulary
        ]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(-scores[number], -len(left), -len(right), left, right) for left, right in known]
    found.sort(key=lambda merge: merge[:3])
    return [[left, right] for *_, left, right in found]


def _templates(file: Gguf) -> dict[str, ChatTemplate]:
    """Return the chat templates by name; the one without a name is the default."""
    found = {}
    for key, source in file.metadata.items():
        if key != TEMPLATE and not key.startswith(f"{TEMPLATE}."):
            continue
        if not isinstance(source, str) or len(source.encode()) > TEMPLATE_BYTES:
            what = f"{show(key)} must be text of at most {TEMPLATE_BYTES} bytes"
            raise InputError(file.path, what)
        found[key.removeprefix(TEMPLATE).removeprefix(".") or "default"] = ChatTemplate(
            source, file.path
        )
    return found


# `tokenizer.ggml.model`: what makes a tokenizer.json of it.
READERS: dict[str | None, Callable[[_Described], dict[str, Any]]] = {
    "gpt2": _byte_level,
    "llama": _scored,
    "gemma4": _gemma4,
}
