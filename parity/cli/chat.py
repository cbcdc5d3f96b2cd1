"""Talk with a model: a message a line, an answer to each, until the input ends.

Keys and values of what was said are kept from turn to turn. Ctrl-C stops an answer, and at the
prompt it ends the chat, as Ctrl-D does.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import add_model
from lockstep.parity.cli.writing import CACHES, Writing, add_thinking, add_writing, summary

if TYPE_CHECKING:
    from lockstep.parity.generating.chat import Chat

HELP = "talk with a model"
EXAMPLE = """\
  lockstep chat MODEL --system "Answer briefly." --temperature 0.7 --no-thinking
  echo "What is 2+2?" | lockstep chat MODEL --json talk.json"""


CHUNK = 512  # a device computes a chunk in one go, and Ctrl-C has to wait for it


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="a message of the system before the chat")
    add_thinking(parser)
    add_writing(parser, max_tokens=1024, caches=CACHES)


def run(options: Namespace) -> int:
    from lockstep.parity.cli.loading import chat_tokenizer
    from lockstep.parity.cli.output import emit
    from lockstep.parity.generating.chat import Chat
    from lockstep.parity.generating.tokenizer_once import tokenizer_once

    options.prefill_chunk = options.prefill_chunk or chunk_of(options)
    writing = Writing(options)
    tokenizer, variables = chat_tokenizer(options, tokenizer_once(writing.checkpoint))
    chat = Chat(
        writing.generation(chat=True), tokenizer, system=options.system, variables=variables
    )
    answers: list[dict[str, Any]] = []
    try:
        talk(chat, options, answers)
    finally:  # what was said is not lost with what could not be
        document = {"messages": chat.messages, "answers": answers}
        emit(options, lambda: document, lambda: "")
    return 0


def chunk_of(options: Namespace) -> int | None:
    """Return how much of a prompt is read at a time if nobody says: where that changes no token.

    Caches that drop or code tokens look at how they come.
    """
    from lockstep.reference.stores.kinds import ROTATING, TURBO_BITS

    told = options.decoder == "wedlm" or options.cache in (*ROTATING, *TURBO_BITS)
    return None if told else CHUNK


def talk(chat: Chat, options: Namespace, answers: list[dict[str, Any]]) -> None:
    """Answer each line of the input; append what `Generation.run` says of each."""
    from lockstep.parity.cli.speech import Speech

    if hasattr(sys.stdin, "reconfigure"):  # whatever the locale, and what is no text is an error
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # pyright: ignore
    quiet = options.json == "-"
    while (line := heard(quiet=quiet)) is not None:
        if not line.strip():
            continue
        with CtrlC() as stopped, Speech(quiet=quiet) as speech:
            answers.append(chat.answer(line, options.max_tokens, speech, stopped=stopped))
        if not quiet:
            print(f"\n{summary(answers[-1], chat.generation.decoder.said())}\n", flush=True)


def heard(*, quiet: bool) -> str | None:
    """Return the next line of the input without its end, None if there is none.

    On a terminal it is asked for, and may be edited.
    """
    stdin = sys.stdin
    try:
        if stdin is None:
            return None
        if stdin.isatty() and not quiet:
            import readline  # noqa: F401  (importing it is what lets a line be edited)

            return input("> ")
        line = stdin.readline()
    except (EOFError, KeyboardInterrupt):
        return None
    return utf8(line.rstrip("\r\n")) if line else None


def utf8(line: str) -> str:
    from lockstep.reference.checkpoint.errors import InputError

    try:
        line.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} of a line"
        raise InputError("standard input", "not UTF-8", where) from None
    return line


class CtrlC:
    """Notes Ctrl-C while an answer is made, for who asks; a second one ends the chat at once."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self) -> bool:
        return self.pressed

    def __enter__(self) -> CtrlC:
        import signal

        self.before = signal.signal(signal.SIGINT, self.note)
        return self

    def __exit__(self, *problem: object) -> None:
        import signal

        signal.signal(signal.SIGINT, self.before)

    def note(self, number: int, frame: object) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
