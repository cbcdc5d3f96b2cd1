"""Truth by hand: the patterns of published tokenizers pass, bombs do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.patterns import check_pattern

GOOD = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}]+[\r\n/]*",
    r"[\p{Lu}&&[^\p{Han}]]+|[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"[()]+|\)+|\(*|[\])]*| {2,}",
]
BAD = [
    ("(a+)+$", "repeats a group"),
    ("(a|a)*$", "repeats a group"),
    ("((a)b){2,}", "repeats a group"),
    ("(?:){4294967295}", "repeats a group"),
    ("(a*)?*", "repeats a group"),
    (r"([)]+)+", "repeats a group"),
    (r"(\)a)*", "repeats a group"),
    ("a{100000}", "repeats too often"),
    ("a{1," + "9" * 5000 + "}", "repeats too often"),
    (r"(a)\1", "has a reference"),
    (r"(?<n>a)\g<n>", "has a reference"),
    ("(?R)", "has a reference"),
    ("a" * 9000, "pattern of 9000 characters is over the limit of 8192"),
]


@pytest.mark.parametrize("pattern", GOOD)
def test_patterns_of_published_tokenizers_pass(pattern: str) -> None:
    check_pattern(pattern, Path("tokenizer.json"))


@pytest.mark.parametrize("pattern, message", BAD)
def test_bombs_do_not(pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_pattern(pattern, Path("tokenizer.json"))
