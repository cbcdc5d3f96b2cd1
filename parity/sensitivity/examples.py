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
    """Cut a text file into pieces of at most `window` tokens. Raises InputError."""
    data = read_whole(path, limit=SIZE)
    try:
        ids = tokenizer.encode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(path, "is not UTF-8", f"byte {error.start}") from None
    pieces = [tuple(ids[start : start + window]) for start in range(0, len(ids), window)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    if not pieces:
        raise InputError(path, "holds no text: two tokens at least are needed")
    return [Example(piece) for piece in pieces]


def read_questions(path: Path, tokenizer: Any, *, end: int | None) -> list[Example]:
    """Read a JSON list of {"question", "answer"}, each put as a chat's turn. Raises InputError.

    The answer is the text alone and, if there is one, the token that ends it.
    """
    listed = parse_json(read_whole(path, limit=SIZE), path, subject="questions", limits=LIMITS)
    if not isinstance(listed, list) or not listed:
        raise InputError(path, "must be a list of questions and answers, one at least")
    return [asked(path, number, one, tokenizer, end) for number, one in enumerate(listed)]


def asked(path: Path, number: int, one: Any, tokenizer: Any, end: int | None) -> Example:
    """Return a question with its answer as ids."""
    said = [one.get(key) if isinstance(one, dict) else None for key in ("question", "answer")]
    if not all(isinstance(text, str) and text for text in said):
        what = f'must be {{"question": text, "answer": text}}, found {show(one, 60)}'
        raise InputError(path, what, f"entry {number}")
    question, answer = said
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    spoken = tokenizer.encode_plain(answer)
    ends = () if end is None else (end,)
    return Example((*prompt, *spoken, *ends), len(prompt), question)
