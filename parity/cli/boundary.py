"""The one place where an exception becomes a line and an exit code."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from lockstep.parity.cli.output import silence

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130


class OutOfMemory(MemoryError):
    """Memory ran out in a command that reads no prompt, which could be a shorter one."""


def guarded(command: Callable[[], int]) -> int:
    """Run a command; say what went wrong in one line on standard error.

    With LOCKSTEP_DEBUG=1 an internal error also prints its traceback.
    """
    try:
        with terminable():
            code = command()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException as error:
        code = refused(error)
    return flushed(code)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that its temporary files are removed."""
    kinds: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        wanted = (signal.SIGTERM, signal.SIGHUP)
        kinds = [kind for kind in wanted if signal.getsignal(kind) is signal.SIG_DFL]
    for kind in kinds:
        signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind in kinds:
            signal.signal(kind, signal.SIG_DFL)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def refused(error: BaseException) -> int:
    from lockstep.reference.checkpoint.errors import InputError, escape, show

    if isinstance(error, BrokenPipeError):  # the reader has enough, as in `generate ... | head`
        silence()
        return 0
    if isinstance(error, KeyboardInterrupt):
        return say("interrupted", INTERRUPTED)
    if isinstance(error, MemoryError):
        hint = "" if isinstance(error, OutOfMemory) else "; a shorter prompt needs less"
        return say(f"error: out of memory{hint}", BAD_INPUT)
    if isinstance(error, InputError):
        return say(f"error: {error}", BAD_INPUT)
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{escape(os.fsdecode(error.filename))}: "
        other = f"input or output failed, {type(error).__name__}: {show(str(error), 200)}"
        return say(f"error: {place}{error.strerror or other}", BAD_INPUT)
    if type(error).__name__ == "PanicException":  # a library in Rust gave up on a file
        return say(f"error: a library cannot read this: {show(str(error), 200)}", BAD_INPUT)
    if os.environ.get("LOCKSTEP_DEBUG") == "1":
        traceback.print_exception(error)
    name, text = type(error).__name__, show(str(error), 200)
    hint = "this is a bug in Lockstep; LOCKSTEP_DEBUG=1 shows where"
    return say(f"internal error: {name}: {text} ({hint})", INTERNAL)


def flushed(code: int) -> int:
    """Empty standard output. If that fails nobody has the result, and the code must not say so."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        silence()
    except (OSError, ValueError) as error:
        silence()
        reason = getattr(error, "strerror", None) or "closed"
        return say(f"error: standard output: {reason}", BAD_INPUT)
    return code


def say(text: str, code: int) -> int:
    with suppress(OSError, ValueError):  # where nobody listens, the exit code still tells
        print(f"lockstep: {text}", file=sys.stderr)
    return code
