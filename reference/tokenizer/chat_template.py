"""Rendering a chat template in a child process, and living with whatever becomes of it.

The child (`template_child.py`) may answer, fail, hang, die, eat memory or print without end. Each
of these ends in text or in one InputError, and always in a child that is gone.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, cast

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.template_child import MEMORY_EXIT

CHILD = Path(__file__).with_name("template_child.py")
# Until the child says that it is ready: a cold disk is no reason to refuse a template.
START_SECONDS = 30.0
READY = b"ready\n"
FIRST_SAFE_JINJA = (3, 1, 6)
# Where Python's own libraries are, and the clock's zone. Nothing else of the user's environment.
ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH", "TZ")


@dataclass(frozen=True)
class Limits:
    """What rendering may cost before it is stopped."""

    cpu_seconds: int = 2
    wall_seconds: float = 2.5
    memory_bytes: int = 256 << 20
    output_bytes: int = 4 << 20


LIMITS = Limits()


class Stopped(Exception):
    """The child was given up; the message says why."""


def render_template(
    template: str, variables: Mapping[str, Any], *, path: Path, limits: Limits = LIMITS
) -> str:
    """Return what a Jinja chat template renders to with these variables.

    Settings, globals, filters and tags are those of `transformers`' apply_chat_template.
    Raises InputError, naming `path`, for variables that JSON cannot say and for every way in which
    the template can fail: its own raise_exception, a syntax error, an unsafe access, a limit.
    """
    try:
        request = json.dumps({"template": template, "variables": dict(variables)}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(path, f"chat messages must be plain JSON data: {error}") from None
    try:
        status, _, body = _run_child(request.encode(), limits).partition(b"\n")
    except Stopped as error:
        raise InputError(path, f"chat template {error}") from None
    except OSError as error:
        raise InputError(path, f"chat template cannot be run: {error}") from None
    text = body.decode(errors="replace")
    if status == b"no":
        raise InputError(path, f"chat template failed: {text}")
    if status != b"ok":
        raise InputError(path, "chat template ended without an answer")
    return text


def _run_child(request: bytes, limits: Limits) -> bytes:
    """Return the child's answer after its `ready` line. The child is dead and reaped on return."""
    numbers = (limits.cpu_seconds, limits.memory_bytes, limits.output_bytes)
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), *map(str, numbers), *_jinja_folders()]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        start_new_session=True,
    )
    with child:
        try:
            answer = _converse(child, request, limits)
            code = child.wait(timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            raise _over_time(limits) from None
        finally:
            child.kill()
    if code:
        raise Stopped(_cause_of_death(code, limits))
    return answer.removeprefix(READY)


def _jinja_folders() -> list[str]:
    """Return the folders that hold Jinja, for a child that sees none of this process's paths."""
    found = version("jinja2")
    if tuple(int(number) for number in re.findall(r"\d+", found)[:3]) < FIRST_SAFE_JINJA:
        raise Stopped(f"needs jinja2 3.1.6 or newer, not {found}: upgrade jinja2")
    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))


def _converse(child: subprocess.Popen[bytes], request: bytes, limits: Limits) -> bytes:
    """Feed the child and collect what it says, neither for too long nor too much of it."""
    requests, answers = cast("BinaryIO", child.stdin), cast("BinaryIO", child.stdout)
    os.set_blocking(requests.fileno(), False)
    unsent, answer = memoryview(request), bytearray()
    deadline = monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_WRITE)
        selector.register(answers, selectors.EVENT_READ)
        while monotonic() < deadline:
            ready = {key.fileobj for key, _ in selector.select(max(0.0, deadline - monotonic()))}
            if requests in ready:
                unsent = _feed(requests, unsent)
                if not unsent:
                    selector.unregister(requests)
                    requests.close()
            if answers in ready:
                chunk = os.read(answers.fileno(), 1 << 16)
                if not chunk:
                    return bytes(answer)
                if not answer:
                    deadline = monotonic() + limits.wall_seconds
                answer += chunk
            if len(answer) > limits.output_bytes + len(READY):
                raise Stopped(f"gave more output than the limit of {limits.output_bytes} bytes")
    raise _over_time(limits)


def _feed(pipe: BinaryIO, unsent: memoryview) -> memoryview:
    """Write what the pipe takes and return the rest; a reader that is gone takes everything."""
    try:
        return unsent[os.write(pipe.fileno(), unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]


def _over_time(limits: Limits) -> Stopped:
    return Stopped(f"took longer than the limit of {limits.wall_seconds} s")


def _cause_of_death(code: int, limits: Limits) -> str:
    if code == MEMORY_EXIT:
        return f"needed more memory than the limit of {limits.memory_bytes} bytes"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"took more CPU time than the limit of {limits.cpu_seconds} s"
    return f"ended its process with code {code}"
