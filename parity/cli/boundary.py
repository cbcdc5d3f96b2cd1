"""The one place where an exception becomes a line and an exit code."""

import os
import sys
import traceback
from collections.abc import Callable

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130


def guarded(command: Callable[[], int]) -> int:
    """Run a command; say what went wrong in one line on standard error.

    With LOCKSTEP_DEBUG=1 an internal error also prints its traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has enough, as in `lockstep taps MODEL | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return say("interrupted", INTERRUPTED)
    except MemoryError:
        return say("error: out of memory; a smaller prompt or a quantised model needs less", BAD_INPUT)
    except Exception as error:
        return refused(error)


def refused(error: Exception) -> int:
    from lockstep.reference.checkpoint.errors import InputError, show

    if isinstance(error, InputError):
        return say(f"error: {error}", BAD_INPUT)
    if isinstance(error, OSError) and error.filename is not None:
        return say(f"error: {error.filename}: {error.strerror}", BAD_INPUT)
    if os.environ.get("LOCKSTEP_DEBUG") == "1":
        traceback.print_exc()
    name, text = type(error).__name__, show(str(error), 200)
    hint = "this is a bug in Lockstep; LOCKSTEP_DEBUG=1 shows where"
    return say(f"internal error: {name}: {text} ({hint})", INTERNAL)


def say(text: str, code: int) -> int:
    print(f"lockstep: {text}", file=sys.stderr)
    return code
