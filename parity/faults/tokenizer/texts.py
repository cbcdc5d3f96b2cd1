"""What goes wrong with a text before it is encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake

# Stand for the line feeds of a message while a template is rendered; no text has them.
KEPT = "\ue0f0"


def text(change: Callable[[str], str]) -> Edit:
    """Change the whole text."""
    return Edit("text", lambda found, prompt: replace(found, text=change(found.text)))


def replaced(old: str, new: str) -> Edit:
    return text(lambda said: said.replace(old, new))


def with_contents(chat: Any, change: Callable[[str], str]) -> Any:
    """Return a chat whose messages say something else."""
    messages = [
        {**one, "content": change(one["content"])} if isinstance(one.get("content"), str) else one
        for one in chat.messages
    ]
    return replace(chat, messages=messages)


def contents(change: Callable[[str], str]) -> Edit:
    """Change what the messages say, and nothing that the template writes."""

    def changed(chat: Any, prompt: Any) -> Any:
        return with_contents(chat, change) if hasattr(chat, "messages") else None

    return Edit("chat", changed)


def template_escaped(chat: Any, prompt: Any) -> Any:
    """Escape the line feeds that the template writes, and none of the messages'."""
    if not hasattr(chat, "messages"):
        return None
    from lockstep.parity.chain.prompt import Rendered

    said = prompt.render(with_contents(chat, lambda one: one.replace("\n", KEPT)))
    return Rendered(said.replace("\n", "\\n").replace(KEPT, "\n"), specials=False)


def misread(said: str) -> str:
    return said.encode().decode("latin-1")


MISTAKES = (
    Mistake(
        id="escaped-newline",
        wrong="a backslash and an n",
        right="a line feed",
        symptom="fluent answers beside the point; a fine-tuned adapter seems to do nothing",
        where="tokens",
        fix="write line feeds into the prompt: in a heredoc, a sigil or JSON \\n may stay two "
        "characters",
        variants={
            "every one": replaced("\n", "\\n"),
            "those of the template": Edit("chat", template_escaped),
            "those of the messages": contents(lambda said: said.replace("\n", "\\n")),
            "a written \\n read as a line feed": replaced("\\n", "\n"),
        },
    ),
    Mistake(
        id="newline-changed",
        wrong="another character, or none",
        right="a line feed",
        symptom="worse answers where lines matter: code, tables, chats",
        where="tokens",
        fix="keep each line feed of the prompt as the one byte 0x0A",
        variants={
            "left out": replaced("\n", ""),
            "as a space": replaced("\n", " "),
            "as CR LF": replaced("\n", "\r\n"),
        },
    ),
    Mistake(
        id="text-encoding-misread",
        wrong="each byte of UTF-8 is taken for a character",
        right="the bytes of a character together",
        symptom="letters beyond ASCII come out as two or three others",
        where="tokens",
        fix="read and hand over the text as UTF-8, once",
        variants={"UTF-8 as Latin-1": text(misread)},
    ),
)
