"""Truth by hand: the child's own defences, which hold if a template leaves the sandbox."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from lockstep.reference.tokenizer import template_child
from lockstep.reference.tokenizer.template_child import explain, refuse_system_calls

CHILD = Path(template_child.__file__)


@pytest.mark.parametrize("event", ["open", "os.system", "subprocess.Popen", "socket.connect"])
def test_system_calls_are_refused(event: str) -> None:
    with pytest.raises(PermissionError, match="may not use"):
        refuse_system_calls(event, ())


@pytest.mark.parametrize("event", ["compile", "exec", "object.__getattr__", "marshal.loads"])
def test_what_jinja_itself_needs_is_not(event: str) -> None:
    refuse_system_calls(event, ())


def test_code_outside_the_sandbox_cannot_open_start_or_write() -> None:
    """By trying: the limits and the hook of the child, then Python code with no sandbox."""
    attempts = ["open('/etc/hosts')", "os.system('true')", "os.listdir('/')", "os.fork()"]
    attempts += ["__import__('subprocess').run(['true'])", "__import__('sqlite3')"]
    code = (
        f"import runpy, sys, os, subprocess\nchild = runpy.run_path({str(CHILD)!r})\n"
        "child['limit_resources'](2, 256 << 20)\n"
        "sys.addaudithook(child['refuse_system_calls'])\n"
        f"for attempt in {attempts!r}:\n"
        "    try: eval(attempt)\n"
        "    except PermissionError as error: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["refused"] * len(attempts)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error, text",
    [
        (MemoryError(), "it needs too much memory"),
        (RecursionError("x"), "it is nested too deeply"),
        (jinja2.TemplateError("roles must alternate"), "roles must alternate"),
        (jinja2.TemplateSyntaxError("bad", 7), "line 7: bad"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 1000),
        (Unprintable(), "Unprintable: (the message cannot be shown)"),
    ],
)
def test_every_failure_is_one_sentence(error: BaseException, text: str) -> None:
    assert explain(error).startswith(text)
    assert len(explain(error)) < 1100
