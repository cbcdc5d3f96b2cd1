"""The parts of a tokenizer.json around its model: what is allowed in them.

The `tokenizers` package trusts these files. Values that it does not expect end in a Rust panic,
which prints a trace of its own, or in memory or time without end. Here only known parts pass, with
values that cannot do that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.tokenizer.patterns import check_pattern

Check = Callable[[dict[str, Any], Path], None]

# The key that holds the parts of a Sequence, for each kind of component.
CHILDREN = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
# Longer replacements make a small text a huge one.
REPLACEMENT_CHARS = 64


def check_components(content: dict[str, Any], path: Path) -> None:
    """Raise InputError for a part that is unknown, or whose values the Rust code cannot take."""
    for kind in CHILDREN:
        _check_component(content.get(kind), kind, path)


def _check_component(component: object, kind: str, path: Path) -> None:
    if component is None:
        return
    if not isinstance(component, dict):
        raise InputError(path, f"{kind} must be an object, not {show(component)}")
    name = component.get("type")
    if not isinstance(name, str) or name not in KNOWN[kind]:
        raise InputError(path, f"unsupported {kind} type {show(name)}")
    check = KNOWN[kind][name]
    if check is not None:
        check(component, path)
    if name == "Sequence":
        parts = component.get(CHILDREN[kind])
        if not isinstance(parts, list):
            raise InputError(path, f"{kind} Sequence must hold a list of {CHILDREN[kind]}")
        for part in parts:
            _check_component(part, kind, path)


def _check_split(component: dict[str, Any], path: Path) -> None:
    pattern = component.get("pattern")
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise InputError(
            path, f"{component['type']} pattern must be an object with String or Regex"
        )
    ((form, text),) = pattern.items()
    if form not in ("String", "Regex") or not isinstance(text, str) or not text:
        raise InputError(path, f"{component['type']} pattern {show(form)} of {show(text)}")
    if form == "Regex":
        check_pattern(text, path)


def _check_replace(component: dict[str, Any], path: Path) -> None:
    _check_split(component, path)
    _check_text(component, "content", path)


def _check_prepend(component: dict[str, Any], path: Path) -> None:
    _check_text(component, "prepend", path)


def _check_text(component: dict[str, Any], key: str, path: Path) -> None:
    text = component.get(key)
    if not isinstance(text, str) or len(text) > REPLACEMENT_CHARS:
        what = f"{component['type']} {key} must be text of at most {REPLACEMENT_CHARS} characters"
        raise InputError(path, what)


def _check_strip_decoder(component: dict[str, Any], path: Path) -> None:
    # Stripping the end indexes before the start of a token that is shorter.
    if component.get("stop") != 0:
        raise InputError(path, f"Strip decoder stop={show(component.get('stop'))}, must be 0")


def _check_fixed_length(component: dict[str, Any], path: Path) -> None:
    length = component.get("length", 5)
    if type(length) is not int or length < 1:
        raise InputError(path, f"FixedLength length={show(length)}, must be at least 1")


def _check_template(component: dict[str, Any], path: Path) -> None:
    special = component.get("special_tokens")
    pieces = component.get("single")
    if not isinstance(special, dict) or not isinstance(pieces, list):
        raise InputError(path, "TemplateProcessing must have single and special_tokens")
    sequences = [piece["Sequence"] for piece in pieces if _has(piece, "Sequence")]
    names = [piece["SpecialToken"]["id"] for piece in pieces if _has(piece, "SpecialToken")]
    if len(sequences) + len(names) != len(pieces) or [one["id"] for one in sequences] != ["A"]:
        raise InputError(path, "TemplateProcessing single must hold special tokens and A once")
    for name in names:
        if name not in special:
            raise InputError(path, f"TemplateProcessing names {show(name)}, not a special token")


def _has(piece: object, key: str) -> bool:
    inner = piece.get(key) if isinstance(piece, dict) and len(piece) == 1 else None
    return isinstance(inner, dict) and isinstance(inner.get("id"), str)


KNOWN: dict[str, dict[str, Check | None]] = {
    "normalizer": {
        **dict.fromkeys(("Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt")),
        **dict.fromkeys(("Strip", "StripAccents", "BertNormalizer", "ByteLevel")),
        "Replace": _check_replace,
        "Prepend": _check_prepend,
    },
    "pre_tokenizer": {
        **dict.fromkeys(("Sequence", "ByteLevel", "Digits", "Metaspace", "Punctuation")),
        **dict.fromkeys(("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
        "CharDelimiterSplit": None,
        "Split": _check_split,
        "FixedLength": _check_fixed_length,
    },
    "post_processor": {
        **dict.fromkeys(("Sequence", "ByteLevel", "BertProcessing", "RobertaProcessing")),
        "TemplateProcessing": _check_template,
    },
    "decoder": {
        **dict.fromkeys(("Sequence", "ByteLevel", "ByteFallback", "Fuse", "Metaspace")),
        **dict.fromkeys(("WordPiece", "BPEDecoder", "CTC")),
        "Replace": _check_replace,
        "Strip": _check_strip_decoder,
    },
}
