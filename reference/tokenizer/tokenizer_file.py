"""From a tokenizer.json that nobody vouches for to a tokenizer of the `tokenizers` package.

The package panics on several kinds of bad file and aborts the process on at least one, so what it
is given has been checked here first. What is still wrong then becomes an InputError.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.strict_json import JsonLimits, parse_json
from lockstep.reference.tokenizer.assembled import assembled, is_plain
from lockstep.reference.tokenizer.components import check_components

# The largest published files are about 40 MB with two million entries.
LIMITS = JsonLimits(size=256 << 20, entries=20_000_000, depth=64)
# Unigram is left out: its files need a normaliser whose binary table nobody can check.
MODELS = ("BPE", "WordLevel", "WordPiece")
# No model has ids near this; an id is a row of its embedding.
MAX_ID = (1 << 24) - 1
ADDED_TOKEN_CHARS = 4096


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json, with the file's truncation and padding off.

    Raises InputError for a file that is missing, over 256 MiB, not strict JSON, of an unsupported
    model, or whose vocabulary, merges, added tokens or components do not fit together.
    """
    data = read_whole(path, limit=LIMITS.size)
    content = parse_json(data, path, subject="tokenizer", limits=LIMITS)
    if not isinstance(content, dict):
        raise InputError(path, f"tokenizer must be a JSON object, not {show(content, 40)}")
    return make_tokenizer(content, path)


def make_tokenizer(content: dict[str, Any], path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of what a tokenizer.json holds. Errors name `path`."""
    check_components(content, path)
    _check_model(content.get("model"), path)
    added = _added_tokens(content.get("added_tokens"), path)
    try:
        with refusing_panics(path, "not a valid tokenizer"):
            tokenizer = assembled(content) if is_plain(content) else read(content)
    except InputError:
        _name_a_bad_merge(content["model"], path)
        raise
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_ids(tokenizer, added, path)
    return tokenizer


def read(content: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(content))


@contextmanager
def refusing_panics(path: Path, what: str) -> Iterator[None]:
    """Turn every error of the `tokenizers` package into an InputError, Rust panics too."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # pyo3's PanicException is no Exception, and it cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(path, f"{what}: {error}") from None


def _check_model(model: object, path: Path) -> None:
    if not isinstance(model, dict):
        raise InputError(path, f"model must be an object, not {show(model)}")
    # Files from before the key existed are all of this one kind: GPT-2's own is one.
    kind = model.get("type", "BPE")
    if kind not in MODELS:
        raise InputError(path, f"unsupported tokenizer model {show(kind)}")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise InputError(path, f"vocab must be an object of tokens, not {show(vocabulary, 40)}")
    _check_vocabulary(vocabulary, path)
    if kind == "BPE":
        _check_bpe(model, vocabulary, path)


def _check_bpe(model: dict[str, Any], vocabulary: dict[str, Any], path: Path) -> None:
    if model.get("dropout"):
        raise InputError(path, f"dropout={show(model['dropout'])} makes encoding random")
    if model.get("continuing_subword_prefix"):
        # The package counts it in characters and cuts it off in bytes, which aborts the process.
        raise InputError(path, "unsupported tokenizer: BPE with a continuing_subword_prefix")
    _check_merges(model.get("merges"), vocabulary, path)
    if model.get("byte_fallback"):
        _check_bytes(vocabulary, path)


def _name_a_bad_merge(model: dict[str, Any], path: Path) -> None:
    """Raise InputError for the first bad merge: the package refuses it, and does not say which."""
    if model.get("type", "BPE") == "BPE":
        _check_each_merge(model["merges"], model["vocab"], path)


def _check_vocabulary(vocabulary: dict[str, Any], path: Path) -> None:
    if _is_numbering(vocabulary.values()):
        return
    owners: dict[int, str] = {}
    for token, number in vocabulary.items():
        # Not isinstance: true is an int to Python.
        if type(number) is not int or not 0 <= number <= MAX_ID:
            what = f"vocab id of {show(token)} is {show(number)}, not in 0..{MAX_ID}"
            raise InputError(path, what)
        other = owners.setdefault(number, token)
        if other is not token:
            raise InputError(
                path, f"vocab id {number} has two tokens, {show(other)}, {show(token)}"
            )


def _is_numbering(numbers: Collection[Any]) -> bool:
    """Whether these are ids, each once: all at a time, since there are hundreds of thousands."""
    return (
        set(map(type, numbers)) == {int}
        and min(numbers) >= 0
        and max(numbers) <= MAX_ID
        and len(set(numbers)) == len(numbers)
    )


def _check_merges(merges: object, vocabulary: dict[str, Any], path: Path) -> None:
    if not isinstance(merges, list):
        raise InputError(path, f"merges must be a list, not {show(merges, 40)}")
    if not _make_tokens(merges, vocabulary):
        _check_each_merge(merges, vocabulary, path)


def _make_tokens(merges: list[Any], tokens: Container[str]) -> bool:
    """Whether what each merge makes is a token: all at a time, too.

    The package panics where that is longer than every token. All else that can be wrong with a
    merge it refuses by itself, in a tenth of the time that it takes here; but it passes over texts
    that begin as a version does.
    """
    kinds = set(map(type, merges))
    if kinds not in ({str}, {list}) or "" in tokens:
        return False
    if kinds == {str}:
        # A separator that is part of a merge shows in the number of pieces.
        made = "\0".join(merges).replace(" ", "").split("\0")
        if len(made) != len(merges) or any(one.startswith("#version") for one in made):
            return False
    else:
        made = map("".join, merges)
    try:
        return all(map(tokens.__contains__, made))
    except TypeError:  # a list of other things than texts
        return False


def _check_each_merge(merges: list[Any], vocabulary: dict[str, Any], path: Path) -> None:
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_text, pair)):
            raise InputError(path, f"bad merge {show(merge)}", f"merge {rank}")
        for token in (*pair, pair[0] + pair[1]):
            if token not in vocabulary:
                what = f"merge refers to unknown token {show(token)}"
                raise InputError(path, what, f"merge {rank}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check_bytes(vocabulary: dict[str, Any], path: Path) -> None:
    # A byte without a token is dropped from the text and nobody is told.
    for byte in range(256):
        if f"<0x{byte:02X}>" not in vocabulary:
            raise InputError(path, f"byte_fallback needs the token '<0x{byte:02X}>'")


def _added_tokens(tokens: object, path: Path) -> dict[str, int]:
    if tokens is None:
        return {}
    if not isinstance(tokens, list):
        raise InputError(path, f"added_tokens must be a list, not {show(tokens, 40)}")
    added: dict[str, int] = {}
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else None
        number = token.get("id") if isinstance(token, dict) else None
        if not isinstance(text, str) or not 0 < len(text) <= ADDED_TOKEN_CHARS or text in added:
            raise InputError(path, f"bad added token {show(text)}")
        if type(number) is not int or not 0 <= number <= MAX_ID:
            raise InputError(path, f"added token {show(text)} has id {show(number)}")
        added[text] = number
    return added


def _check_ids(tokenizer: tokenizers.Tokenizer, added: dict[str, int], path: Path) -> None:
    """Refuse what the package would silently number anew, and template ids without a token."""
    for text, number in added.items():
        got = tokenizer.token_to_id(text)
        if got != number:
            what = f"added token {show(text)} says id={number}, but in its order it gets {got}"
            raise InputError(path, what)
    with refusing_panics(path, "post_processor fails"):
        special = tokenizer.encode("").ids
    for number in special:
        if tokenizer.id_to_token(number) is None:
            raise InputError(path, f"post_processor adds id={number}, which is no token")
