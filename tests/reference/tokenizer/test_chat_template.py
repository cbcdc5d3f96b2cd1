"""Truth by hand: what templates render to, and that each bomb ends in one line and no process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer import chat_template, template_child
from lockstep.reference.tokenizer.chat_template import Limits, render_template
from tests.sampled import sampled

PATH = Path("chat_template.jinja")
# Bombs that only a clock stops would make the tests slow.
SHORT = Limits(cpu_seconds=1, wall_seconds=0.3)
MESSAGES = [{"role": "user", "content": "hi <b>&é"}, {"role": "assistant", "content": "yes"}]


def render(template: str, limits: Limits = SHORT, **variables: object) -> str:
    return render_template(template, {"messages": MESSAGES, **variables}, path=PATH, limits=limits)


RENDERED = {
    "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n{% endif %}\n{% endfor %}": (
        "user\nassistant\n"
    ),
    "{{ messages[0].content | tojson }}": '"hi <b>&é"',
    "{{ {'b': 1, 'a': [1]} | tojson(sort_keys=true, separators=(',', ':')) }}": '{"a":[1],"b":1}',
    "{{ {'a': 1} | tojson(indent=1) }}": '{\n "a": 1\n}',
    "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}": "user",
    "{% for m in messages %}{% continue %}x{% endfor %}": "",
    "a{% generation %}b{% set x = 1 %}{% endgeneration %}{{ x }}": "ab",
    "{% set n = namespace(self=1) %}{% set n.self = 2 %}{{ n.self }}": "2",
    "{{ dict(a=1).a }}{{ dict.fromkeys(['b'], 2).b }}": "12",
    "{{ strftime_now('%Y') | int > 2000 }}": "True",
    "{{ missing }}|{{ missing is defined }}": "|False",
    "{{ 'a\\nb' }}": "a\nb",
    "{{ '%s' % 'é' | wordwrap(1) | pprint }}{{ '<i>x</i>' | striptags }}": "'é'x",
    "{{ messages | length }}": "2",
}


@pytest.mark.parametrize("template", RENDERED)
def test_what_templates_render_to(template: str) -> None:
    assert render(template, chat_template.LIMITS) == RENDERED[template]


def test_a_long_chat_goes_through_the_pipes() -> None:
    """More than a pipe holds, both ways at once."""
    text = "é\n" * 300_000
    assert render("{{ text }}", chat_template.LIMITS, text=text) == text


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}!",
    "{{ ''|attr('__class__') }}!",
    "{{ messages.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__[0] }}",
    "{{ dict.__class__.__base__ }}",
    "{{ dict.__call__.__func__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ '{0.__class__}'.format(1) }}!",
    "{{ ('{0.__class__.__mro__}'|attr('format'))(1) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ (''|attr('format_map'))({}) | attr('__class__') }}!",
    "{% set n = namespace(__class__=1) %}",
    "{% set n = namespace() %}{% set n.__dict__ = 1 %}",
    "{% for n in [1] %}{{ loop.__class__.__init__.__globals__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func.__code__ }}",
    "{{ [].append.__self__ }}{{ messages.append(1) }}",
    "{% set x = messages[0].update({'a': 1}) %}",
    "{{ messages | map(attribute='__class__') | list | first | attr('mro') }}{{ 1 / 0 }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import system %}",
    "{% extends '/etc/passwd' %}",
]
DOUBLING = (
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)
BOMBS = {
    "{{ range(10**9) | list }}": "Range too big",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "0.3 s",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}": "",
    "{{ 'a' * 5000000000 }}": "too much memory",
    "{{ 'a' * 5000000 }}": "over the limit of 4194304 bytes",
    "{{ 'a'.center(300000000) }}": "",
    "{{ 'a\na' | indent(10**9) }}": "",
    DOUBLING: "",
    "{{ [0] * 10**9 }}": "too much memory",
    "{{ 10**5000000 }}": "0.3 s",
    "{% set x = 9**(9**9) %}": "",
    "{{ 10**100000 }}": "ValueError",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}": "nested too deeply",
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}": "nested too deeply",
    "{{ " + "[" * 5000 + "]" * 5000 + " }}": "nested too deeply",
    "{% if 1 %}" * 200 + "{% endif %}" * 200: "nested too deeply",
    "{{ raise_exception('\x1b[31m::error::\n\u202e' * 100000) }}": r"failed: \x1b[31m::error::\x0a",
    "{{ raise_exception({'a': messages}) }}": "failed: {'a'",
    "{{ raise_exception() }}": "TypeError",
    "{{ strftime_now(3) }}": "TypeError",
    "{{ '\\ud800' }}": "surrogates not allowed",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ nothing.at.all }}": "UndefinedError: 'nothing' is undefined",
    "{% for %}": "failed: line 1:",
    "\n{{ 'a": "failed: line 2:",
    "{% generation %}": "failed: line 1:",
    "{{ {} | tojson(separators=3) }}": "Error",
    "{{ messages | groupby('x.y.z') | list | tojson }}{{ [1, 'a'] | sort }}": "Error",
    "{{ 'x' | nosuchfilter }}": "No filter named",
    "{% call(x) messages() %}{% endcall %}": "not callable",
}


@sampled(10)
@pytest.mark.parametrize(
    "template, message", [*((one, "failed: ") for one in ESCAPES), *BOMBS.items()]
)
def test_a_bomb_ends_in_one_line(template: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        # What has something to say gets the time to say it, on a slow machine too.
        render(template, SHORT if message in ("", "0.3 s") else chat_template.LIMITS)
    line = str(caught.value)
    assert message in line
    assert line.startswith("chat_template.jinja: chat template ")
    assert line.isprintable() and len(line.encode()) <= 400
    assert time.monotonic() - start < 60  # far more than any limit, but it must end


def test_the_limit_on_cpu_time() -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=20)
    with pytest.raises(InputError, match="took more CPU time than the limit of 1 s"):
        render(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", limits
        )


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object(), b"bytes"])
def test_variables_must_be_json(value: object) -> None:
    with pytest.raises(InputError, match="chat messages must be plain JSON data"):
        render("", value=value)


def test_nothing_in_the_working_folder_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "jinja2", "resource", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    assert render("{{ messages[0].role }}", chat_template.LIMITS) == "user"
    assert not (tmp_path / "imported").exists()


READY = "import os, sys, time, signal\nos.write(1, b'ready\\n')\n"
CHILDREN = {
    "os.kill(os.getpid(), signal.SIGKILL)": "took more CPU time",
    "os.kill(os.getpid(), signal.SIGSEGV)": "ended its process with code -11",
    "os.kill(os.getpid(), signal.SIGSTOP)": "took longer than the limit of 0.3 s",
    "sys.exit(1)": "ended its process with code 1",
    "sys.exit(0)": "ended without an answer",
    "os.write(1, bytes(range(256)))": "ended without an answer",
    "os.close(1); time.sleep(60)": "took longer",
    "os.close(0); time.sleep(60)": "took longer",
    "while True: os.write(1, b'x' * 65536)": "gave more output than the limit of 4194304 bytes",
    "while True: os.write(1, b'x'); time.sleep(0.01)": "took longer",
    "os.write(1, b'no\\n\\xff\\x1b')": r"failed: \ufffd\x1b",
}


@pytest.mark.parametrize("code, message", CHILDREN.items())
def test_a_child_that_misbehaves_is_killed_and_reaped(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            children.append(self)

    script = tmp_path / "child.py"
    script.write_text(READY + code)
    monkeypatch.setattr(chat_template, "CHILD", script)
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(InputError) as caught:
        render("x" * 500_000)
    assert message.replace(r"\ufffd", "\ufffd") in str(caught.value)
    assert [child.returncode is not None for child in children] == [True]
    with pytest.raises(ProcessLookupError):
        os.kill(children[0].pid, 0)


def test_a_child_that_never_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(chat_template, "CHILD", script)
    monkeypatch.setattr(chat_template, "START_SECONDS", 0.2)
    with pytest.raises(InputError, match="took longer"):
        render("")


def test_no_python_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="chat template cannot be run"):
        render("")


def test_a_jinja_with_known_escapes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "version", lambda _: "3.1.5")
    with pytest.raises(InputError, match=r"needs jinja2 3\.1\.6 or newer, not 3\.1\.5"):
        render("")


@sampled(0)
def test_memory_is_limited_where_the_system_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: the limit is accepted and ignored, so the child watches itself."""
    script = tmp_path / "child.py"
    script.write_text(
        "import resource, runpy, sys\n"
        "sys.platform = 'elsewhere'\n"
        "resource.setrlimit = lambda *_: None\n"
        f"runpy.run_path({template_child.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(chat_template, "CHILD", script)
    assert render("{{ messages[0].role }}", chat_template.LIMITS) == "user"
    with pytest.raises(InputError, match="needed more memory than the limit of 67108864 bytes"):
        # Time enough on a slow machine, so that memory is what runs out.
        render(DOUBLING, Limits(cpu_seconds=30, wall_seconds=60, memory_bytes=64 << 20))
