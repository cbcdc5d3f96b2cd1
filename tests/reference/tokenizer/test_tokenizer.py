"""Truth by hand: vocabularies small enough to know every id. By law: round trips."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer import tokenizer as module
from lockstep.reference.tokenizer.tokenizer import Tokenizer, load_tokenizer

NEWLINE = 10  # byte-level ids below 256 are the bytes themselves
HELLO, SPACE_HELLO, ENDOFTEXT, IM_START, IM_END, THINK = 259, 260, 261, 262, 263, 264
HARD_TEXTS = (
    "",
    " ",
    "  hello",
    "hello ",
    "\n\n",
    "a\r\nb",
    "é€😀",
    "e\u0301",
    "👩\u200d👩\u200d👧",
    "\0",
)


@pytest.fixture(scope="module")
def byte_level(folders: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(folders["byte_level"])


@pytest.fixture(scope="module")
def sentencepiece(folders: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(folders["sentencepiece"])


def test_words_become_the_merged_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.encode("hello hello") == [HELLO, SPACE_HELLO]
    assert byte_level.encode("  hello") == [ord(" "), SPACE_HELLO]


def test_a_newline_is_one_byte_and_its_escape_is_two(byte_level: Tokenizer) -> None:
    assert byte_level.encode("a\nb") == [ord("a"), NEWLINE, ord("b")]
    assert byte_level.encode(r"a\nb") == [ord("a"), ord("\\"), ord("n"), ord("b")]


def test_composed_and_decomposed_letters_are_the_same(byte_level: Tokenizer) -> None:
    assert byte_level.encode("e\u0301") == byte_level.encode("é") == list("é".encode())


def test_special_tokens_in_the_text_are_recognised(byte_level: Tokenizer) -> None:
    assert byte_level.encode("hello<|im_end|>") == [HELLO, IM_END]
    assert byte_level.encode("<think>") == [THINK]


def test_decode_drops_special_tokens_only(byte_level: Tokenizer) -> None:
    assert byte_level.decode([HELLO, IM_END, ENDOFTEXT]) == "hello"
    assert byte_level.decode([THINK, HELLO]) == "<think>hello"


def test_empty_text_and_bos(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.encode("") == []
    assert sentencepiece.encode("") == [1]
    assert sentencepiece.encode("a")[0] == 1
    assert byte_level.decode([]) == ""


def test_size_eos_and_spelling(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert (byte_level.size, sentencepiece.size) == (265, 265)
    assert byte_level.eos_token_ids == frozenset({IM_END})
    assert sentencepiece.eos_token_ids == frozenset({2})
    assert [byte_level.token(number) for number in (NEWLINE, SPACE_HELLO)] == ["Ċ", "Ġhello"]
    assert byte_level.token(265) == byte_level.token(-1) == ""


def test_ids_of_padded_embedding_rows_have_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.decode([265, HELLO, 151_935, 2**40]) == "hello"


def test_a_negative_id_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InputError, match="token id -1 is negative"):
        byte_level.decode([HELLO, -1])


def test_text_that_is_not_unicode_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"lone surrogate \(character 2\)"):
        byte_level.encode("ab\ud800")


def test_text_over_the_limit_is_refused(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TEXT_BYTES", 4)
    assert byte_level.encode("éé") == list("éé".encode())
    with pytest.raises(InputError, match="text of 5 bytes is over the limit of 4"):
        byte_level.encode("ééa")


def test_the_chat_prompt_by_hand(byte_level: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert byte_level.render_chat(messages) == text
    ids = [IM_START, *b"user\n", HELLO, IM_END, NEWLINE, IM_START, *b"assistant\n"]
    assert byte_level.encode_chat(messages) == ids
    assert byte_level.encode_chat(messages, add_generation_prompt=False) == ids[:9]


def test_a_chat_has_one_bos(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode_chat([{"role": "user", "content": "b"}])
    assert ids.count(1) == 1
    assert ids[0] == 1


@pytest.mark.parametrize("messages", [[], [["user", "hi"]], [{"role": "user", "content": {1}}]])
def test_a_bad_chat_is_refused(byte_level: Tokenizer, messages: list) -> None:
    with pytest.raises(InputError):
        byte_level.render_chat(messages)


def test_a_model_without_a_template_says_so(write_folder) -> None:
    tokenizer = load_tokenizer(write_folder(config={}))
    with pytest.raises(InputError, match="has no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_tools_choose_the_template_for_tools(write_folder) -> None:
    named = [{"name": "default", "template": "plain"}]
    named.append({"name": "tool_use", "template": "{{ tools | tojson }}"})
    tokenizer = load_tokenizer(write_folder(config={"chat_template": named}))
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "plain"
    assert tokenizer.render_chat(messages, tools=[{"name": "é"}]) == '[{"name": "é"}]'


def test_keys_without_a_value_are_left_out(write_folder) -> None:
    template = "{{ messages[0].content is defined }} {{ tools is defined }} {{ extra }}"
    tokenizer = load_tokenizer(write_folder(config={"chat_template": template}))
    assert tokenizer.render_chat([{"role": "a", "content": None}], extra=3) == "False True 3"


def test_the_file_does_not_truncate_or_pad(write_folder, contents) -> None:
    content = contents["byte_level"]()
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    assert load_tokenizer(write_folder(content=content)).encode("abc") == [97, 98, 99]


def test_eos_must_be_a_token(write_folder) -> None:
    with pytest.raises(InputError, match="eos_token '<nope>' is not a token"):
        load_tokenizer(write_folder(config={"eos_token": "<nope>"}))


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(tmp_path)


def test_the_config_may_be_absent(write_folder) -> None:
    folder = write_folder()
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(folder).eos_token_ids == frozenset()


def test_importing_does_not_load_jinja() -> None:
    code = "import sys, lockstep.reference.tokenizer.tokenizer; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("".join(HARD_TEXTS))
def test_bytes_survive_the_round_trip(byte_level: Tokenizer, text: str) -> None:
    """By law: without special tokens in the text only the NFC normaliser changes it."""
    assert byte_level.decode(byte_level.encode(text)) == unicodedata.normalize("NFC", text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("".join(HARD_TEXTS))
def test_byte_fallback_survives_the_round_trip(sentencepiece: Tokenizer, text: str) -> None:
    """By law: a literal '▁' is the one character that this kind of tokenizer cannot tell apart."""
    assert sentencepiece.decode(sentencepiece.encode(text)) == text.replace("▁", " ")
