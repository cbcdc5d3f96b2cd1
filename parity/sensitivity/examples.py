"""What a model is tried on: pieces of a text, or questions with the answers that are right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.strict_json import JsonLimits, parse_json

SIZE, ENTRIES = 1 << 24, 1 << 17
LIMITS = JsonLimits(size=SIZE, entries=ENTRIES, depth=3)


@dataclass(frozen=True)
class Example:
    """Token ids; those from `answer` on are what should be said. `name` is the question, if any."""

    ids: tuple[int, ...]
    answer: int | None = None
    name: str | None = None


def read_text(path: Path, tokenizer: Any, *, window: int) -> list[Example]:
    """Cut a text file into pieces of at most `window` tokens. Raises InputError.

    Each begins with what the tokenizer puts before a text.
    """
    data = read_whole(path, limit=SIZE)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, "is not UTF-8", f"byte {error.start}") from None
    whole, ids = tokenizer.encode(text), tokenizer.encode_plain(text)
    begin = whole[: whole.index(ids[0])] if ids and ids[0] in whole else []  # BOS, if it is added
    step = max(1, window - len(begin))
    pieces = [(*begin, *ids[start : start + step]) for start in range(0, len(ids), step)]
    pieces = [piece for piece in pieces if len(piece) > 1 + len(begin)]
    if not pieces:
        raise InputError(path, "holds no text: two tokens at least are needed")
    return [Example(piece) for piece in pieces]


def read_questions(
    path: Path, tokenizer: Any, *, end: int | None, **variables: Any
) -> list[Example]:
    """Read a JSON list of {"question", "answer"}, each put as a chat's turn. Raises InputError.

    The answer is the text alone and, if there is one, the token that ends it. `variables` are what
    the chat template is told.
    """
    listed = parse_json(read_whole(path, limit=SIZE), path, subject="questions", limits=LIMITS)
    if not isinstance(listed, list) or not listed:
        raise InputError(path, "must be a list of questions and answers, one at least")
    pairs = [said(path, number, one) for number, one in enumerate(listed)]
    ends = () if end is None else (end,)
    return [asked(tokenizer, one, ends, variables) for one in pairs]


def said(path: Path, number: int, one: Any) -> tuple[str, str]:
    """Return an entry's question and answer."""
    entry = one if isinstance(one, dict) else {}
    question, answer = entry.get("question"), entry.get("answer")
    if not (isinstance(question, str) and isinstance(answer, str) and question and answer):
        what = f'must be {{"question": text, "answer": text}}, found {show(one, 60)}'
        raise InputError(path, what, f"entry {number}")
    return question, answer


def asked(
    tokenizer: Any, pair: tuple[str, str], ends: tuple[int, ...], variables: dict[str, Any]
) -> Example:
    """Return a question with its answer as ids."""
    question, answer = pair
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}], **variables)
    return Example((*prompt, *tokenizer.encode_plain(answer), *ends), len(prompt), question)
