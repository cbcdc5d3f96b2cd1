"""Strings that end a text, whatever pieces it comes in. By loop, and by hand."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.stop_strings import StopStrings
from lockstep.reference.tokenizer.tokenizer import load_tokenizer

LETTERS = st.text("ab", max_size=12)


def by_loop(text: str, strings: list[str]) -> tuple[str, str | None]:
    """Read one character after another; end as soon as the text ends in one of the strings."""
    for end in range(len(text) + 1):
        found = sorted((one for one in strings if text[:end].endswith(one)), key=len)
        if found:
            return text[: end - len(found[-1])], found[-1]
    return text, None


def streamed(pieces: list[str], strings: list[str]) -> tuple[list[str], str | None]:
    stops = StopStrings(strings)
    shown = [stops.push(piece) for piece in pieces]
    return [*shown, stops.finish()], stops.found


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.data())
@example("aab", ["aab", "ab"], None)
def test_how_a_text_is_cut_into_pieces_changes_nothing(text, strings, data):
    cuts = [] if data is None else sorted(data.draw(st.lists(st.integers(0, len(text)))))
    borders = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    shown, found = streamed(pieces, strings)
    assert ("".join(shown), found) == by_loop(text, strings)


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_no_more_is_held_back_than_could_become_a_stop_string(text, strings):
    """By loop: what is held after each character is the longest end that one begins with."""
    stops, shown = StopStrings(strings), ""
    for place, char in enumerate(text):
        shown += stops.push(char)
        if stops.found is not None:
            return
        read = text[: place + 1]
        ends = [n for n in range(len(read) + 1)
                if n == 0 or any(one.startswith(read[-n:]) for one in strings)]  # fmt: skip
        assert shown == read[: len(read) - max(ends)]


def test_by_hand():
    """Held back while it may be one, shown when it is none, cut when it is."""
    assert streamed(["1\n", "\nUs", "er", ":"], ["\n\nUser:"]) == (["1", "", "", "", ""],
                                                                     "\n\nUser:")  # fmt: skip
    assert streamed(["1\n", "2"], ["\n\n"]) == (["1", "\n2", ""], None)
    assert streamed(["1\n"], ["\n\n"]) == (["1", "\n"], None)
    assert streamed(["abc"], ["abc", "b"]) == (["a", ""], "b")
    assert streamed(["x"], []) == (["x", ""], None)


def test_nothing_comes_after_the_end():
    stops = StopStrings(["b"])
    assert [stops.push(piece) for piece in ("ab", "c")] == ["a", ""] and stops.finish() == ""


def test_an_empty_string_is_refused():
    with pytest.raises(InputError, match="an empty string, but should have a character"):
        StopStrings(["a", ""])


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_a_stop_string_of_split_characters_is_found_across_tokens(folders, kind):
    """By hand: a token a byte. Nothing of an emoji that is the stop string is shown."""
    tokenizer = load_tokenizer(folders[kind])
    stream, stops = tokenizer.stream(), StopStrings(["😀!"])
    shown = [stops.push(stream.push(token)) for token in tokenizer.encode("é€😀!é")]
    assert ("".join(shown), stops.found) == ("é€", "😀!")
    assert len(shown) > 10
