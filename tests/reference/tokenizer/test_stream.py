"""Truth by hand for whole characters; by law: the pieces joined are what `decode` gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import Tokenizer, load_tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(folders[request.param])


@pytest.fixture(scope="module")
def byte_level(folders: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(folders["byte_level"])


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(number) for number in ids), stream.finish()]


def test_a_character_comes_with_its_last_byte(byte_level: Tokenizer) -> None:
    """By hand: 2, 3 and 4 bytes of UTF-8."""
    expected = ["", "é", "", "", "€", "", "", "", "😀", ""]
    assert pieces(byte_level, list("é€😀".encode())) == expected


def test_a_character_that_never_ends_comes_last(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, [ord("a"), *"😀".encode()[:3]]) == ["a", "", "", "", "\ufffd"]


def test_leading_spaces_stay(tokenizer: Tokenizer) -> None:
    assert "".join(pieces(tokenizer, tokenizer.encode("  a"))) == "  a"


def test_special_tokens_and_unknown_ids_are_silent(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, [97, 263, 999_999, 2**40, 98]) == ["a", "", "", "", "b", ""]


def test_a_negative_id_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InputError, match="token id -1 is negative"):
        byte_level.stream().push(-1)


def test_bytes_taken_back_do_not_stop_the_stream(folders: dict[str, Path]) -> None:
    """By hand: 'A' is shown, then <0xE2> makes decode turn both bytes into U+FFFD."""
    tokenizer = load_tokenizer(folders["sentencepiece"])
    a, b, byte = 260, 261, 3
    shown = pieces(tokenizer, [byte + 0x41, byte + 0xE2, a, b])
    assert tokenizer.decode([byte + 0x41, byte + 0xE2, a, b]) == "\ufffd\ufffdab"
    assert shown == ["A", "", "\ufffda", "b", ""]


@given(TEXT)
@example("a\ufffdb\ufffd")
@example("👩\u200d👩\u200d👧  \n\n a")
def test_pieces_of_a_text_join_to_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(shown)


@given(st.lists(st.integers(0, 270)))
def test_pieces_of_any_bytes_join_to_decode(byte_level: Tokenizer, ids: list[int]) -> None:
    """A model may write anything: broken UTF-8, special tokens, rows that are no token."""
    assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids)
