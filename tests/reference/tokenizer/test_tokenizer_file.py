"""Hostile tokenizer.json files. Truth by hand: each case says what must be refused and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer import tokenizer_file
from lockstep.reference.tokenizer.tokenizer_file import read_tokenizer, refusing_panics

Edit = Callable[[dict[str, Any]], object]


def vocab(**tokens: object) -> Edit:
    return lambda content: content["model"]["vocab"].update(tokens)


def model(**values: object) -> Edit:
    return lambda content: content["model"].update(values)


def add(text: object, number: object) -> Edit:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    token = {"id": number, "content": text, **flags}
    return lambda content: content["added_tokens"].append(token)


def part(**values: object) -> Edit:
    return lambda content: content.update(values)


BAD = {
    "no model": (part(model=None), "model must be an object, not null"),
    "model type": (model(type="Unigram"), "unsupported tokenizer model 'Unigram'"),
    "model type list": (model(type=["BPE"]), "unsupported tokenizer model"),
    "vocab list": (model(vocab=[["a", 0]]), "vocab must be an object"),
    "vocab empty": (model(vocab={}), "vocab must be an object"),
    "id twice": (vocab(zz=5), "vocab id 5 has two tokens"),
    "id negative": (vocab(zz=-1), "vocab id of 'zz' is -1"),
    "id float": (vocab(zz=300.0), "vocab id of 'zz' is 300.0"),
    "id bool": (vocab(zz=True), "vocab id of 'zz' is true"),
    "id text": (vocab(zz="300"), "vocab id of 'zz' is '300'"),
    "id 2^32": (vocab(zz=2**32), "vocab id of 'zz' is 4294967296"),
    "id huge": (vocab(zz=2**63), "vocab id of 'zz' is 9223372036854775808"),
    "surrogate": (vocab(**{"\ud800": 300}), "not a valid tokenizer"),
    "dropout": (model(dropout=0.1), "dropout=0.1 makes encoding random"),
    "prefix abort": (model(continuing_subword_prefix="#"), "continuing_subword_prefix"),
    "merges absent": (model(merges=None), "merges must be a list"),
    "merge of 3": (model(merges=[["h", "e", "l"]]), "bad merge"),
    "merge text of 3": (model(merges=["h e l"]), "bad merge 'h e l'"),
    "merge of 1": (model(merges=["he"]), "bad merge 'he'"),
    "merge empty part": (model(merges=[["h", ""]]), "bad merge"),
    "merge number": (model(merges=[[1, 2]]), "bad merge"),
    "merge unknown": (model(merges=[["h", "é€"]]), "merge refers to unknown token 'é€'"),
    "merge panic": (model(merges=[["h", "h"]]), "merge refers to unknown token 'hh'"),
    "merge longer than all": (model(merges=[["hello"] * 2]), "unknown token 'hellohello'"),
    "merge text longer than all": (model(merges=["hello hello"]), "unknown token 'hellohello'"),
    "merge of two spaces": (model(merges=["h  e"]), "bad merge 'h  e' (merge 0)"),
    "merge as a version": (
        lambda content: (
            vocab(**{"#versionab": 265})(content),
            model(merges=["#versionab"])(content),
        ),
        "bad merge '#versionab'",
    ),
    "merges with NUL": (model(merges=["h\0h e"]), "merge refers to unknown token 'h\\x00h'"),
    "merges of two kinds": (model(merges=["h e", ["h", "e"]]), "not a valid tokenizer"),
    "merge object": (model(merges=[{"h": 1, "e": 2}]), "bad merge"),
    "empty token": (
        lambda content: (vocab(**{"": 265})(content), model(merges=[["h", ""]])(content)),
        "bad merge ['h', '']",
    ),
    "bytes missing": (model(byte_fallback=True), "byte_fallback needs the token '<0x00>'"),
    "added empty": (add("", 265), "bad added token ''"),
    "added long": (add("x" * 5000, 265), "bad added token 'xxx"),
    "added number": (add(3, 265), "bad added token 3"),
    "added twice": (add("<think>", 265), "bad added token '<think>'"),
    "added id taken": (add("<x>", 5), "added token '<x>' says id=5, but in its order it gets 265"),
    "added id gap": (add("<x>", 300), "added token '<x>' says id=300"),
    "added id bool": (add("<x>", True), "added token '<x>' has id true"),
    "added object": (part(added_tokens={}), "added_tokens must be a list"),
    "version": (part(version="9.0"), "Unknown tokenizer version"),
    "unknown key": (part(surprise=1), "not a valid tokenizer"),
    "bert ids": (
        part(post_processor={"type": "BertProcessing", "sep": ["x", 999], "cls": ["y", 0]}),
        "post_processor adds id=999, which is no token",
    ),
}


@pytest.mark.parametrize("edit, message", BAD.values(), ids=BAD)
def test_a_hostile_file_is_one_line(
    contents, tmp_path: Path, capfd, edit: Edit, message: str
) -> None:
    content = contents["byte_level"]()
    edit(content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_tokenizer(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).encode()) <= 400
    assert str(caught.value).isprintable()
    assert capfd.readouterr().err == ""  # a panic of the package would tell its own story there


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "file is empty"),
        (b"[]", "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"model": 1, "model": 2}', "duplicate key 'model'"),
        (b'{"model":' + b"[" * 100_000, "nested deeper"),
        (b'{"model": NaN}', "NaN is not a JSON number"),
        (b"\xff\xfe{\0}\0", "not UTF-8"),
    ],
)
def test_what_is_not_strict_json(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_tokenizer(path)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(tokenizer_file.LIMITS.size + 1)
    with pytest.raises(InputError, match="file of 268435457 bytes is over the limit of 268435456"):
        read_tokenizer(path)


def test_both_forms_of_merges_and_a_model_without_a_type(contents, tmp_path: Path) -> None:
    content = contents["byte_level"]()
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    del content["model"]["type"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert read_tokenizer(path).encode("hello").ids == [259]


def test_a_word_level_file(contents, tmp_path: Path) -> None:
    content = contents["byte_level"]() | {
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
    }
    content["model"] = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
    content |= {"post_processor": None, "decoder": None}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert read_tokenizer(path).encode("a b").ids == [1, 0]


def test_a_panic_becomes_an_input_error(tmp_path: Path) -> None:
    panic = type("PanicException", (BaseException,), {})
    message = "cannot encode: index out of bounds"
    with pytest.raises(InputError, match=message), refusing_panics(tmp_path, "cannot encode"):
        raise panic("index out of bounds")
    with pytest.raises(KeyboardInterrupt), refusing_panics(tmp_path, "cannot encode"):
        raise KeyboardInterrupt


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused(contents, tmp_path_factory, data) -> None:
    """By law: whatever one value is replaced by, there is a tokenizer or an InputError."""
    content = contents[data.draw(st.sampled_from(["byte_level", "sentencepiece"]))]()
    holder = content
    while True:
        key = data.draw(
            st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder)))
        )
        inner = holder[key]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            break
        holder = inner
    simple = (
        st.none() | st.booleans() | st.integers(-2, 2**33) | st.floats(0, 1) | st.text(max_size=3)
    )
    holder[key] = data.draw(simple | st.lists(simple, max_size=2) | st.just({}))
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_text(json.dumps(content))
    try:
        tokenizer = read_tokenizer(path)
    except InputError as error:
        assert str(error).isprintable()
        return
    with refusing_panics(path, "cannot encode"):
        tokenizer.decode(tokenizer.encode("hello b").ids)
