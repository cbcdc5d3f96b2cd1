"""Truth by hand: which parts of a tokenizer.json pass, and why each other is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.components import check_components

A = {"Sequence": {"id": "A", "type_id": 0}}
B = {"Sequence": {"id": "B", "type_id": 0}}
X = {"SpecialToken": {"id": "X", "type_id": 0}}


def split(**pattern: object) -> dict:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def template(single: object, special: object) -> dict:
    return {"type": "TemplateProcessing", "single": single, "special_tokens": special}


BAD = [
    ("normalizer", "NFC", "normalizer must be an object"),
    ("normalizer", {}, "unsupported normalizer type null"),
    ("normalizer", {"type": ["NFC"]}, "unsupported normalizer type"),
    ("normalizer", {"type": "Precompiled"}, "unsupported normalizer type 'Precompiled'"),
    ("normalizer", {"type": "Sequence"}, "must hold a list of normalizers"),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "?"}]}, "type '?'"),
    ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "x"}, "of ''"),
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 65}, "64"),
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}}, "content must be text"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 65}, "prepend must be text"),
    ("pre_tokenizer", split(), "must be an object with String or Regex"),
    ("pre_tokenizer", split(Glob="*"), "pattern 'Glob'"),
    ("pre_tokenizer", split(Regex=3), "of 3"),
    ("pre_tokenizer", split(Regex="(a+)+$"), "it repeats a group"),
    ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "must be at least 1"),
    ("post_processor", template([A], None), "must have single and special_tokens"),
    ("post_processor", template([X, A], {}), "names 'X', not a special token"),
    ("post_processor", template([X], {"X": {}}), "must hold special tokens and A once"),
    ("post_processor", template([A, A], {}), "must hold special tokens and A once"),
    ("post_processor", template([B], {}), "must hold special tokens and A once"),
    ("post_processor", template([A, 3], {}), "must hold special tokens and A once"),
    ("decoder", {"type": "Strip", "content": " ", "start": 1, "stop": 1}, "stop=1, must be 0"),
]


@pytest.mark.parametrize("kind, component, message", BAD)
def test_a_part_that_the_rust_code_cannot_take(kind: str, component: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_components({kind: component}, Path("tokenizer.json"))
    assert message in str(caught.value)


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece"])
def test_what_published_tokenizers_hold_passes(contents, family: str) -> None:
    check_components(contents[family](), Path("tokenizer.json"))
