"""The one place where exceptions become a line and a code: every kind of them. By hand."""

import errno
import gc
from importlib import import_module

import pytest

from lockstep.parity.cli import main
from lockstep.parity.cli.boundary import guarded
from lockstep.parity.cli.output import printable, table, warn
from lockstep.parity.cli.speech import Speech
from lockstep.reference.checkpoint.errors import InputError


class PanicException(BaseException):
    """What a crash inside a Rust extension looks like."""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("m", "is bad", "here"), 2, "lockstep: error: m: is bad (here)"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a\x1b[31m\nb"), 2,
         r"lockstep: error: a\x1b[31m\x0ab: No such file"),
        (OSError(errno.ENOSPC, "No space left"), 2, "lockstep: error: No space left"),
        (TimeoutError("too late"), 2,
         "lockstep: error: input or output failed, TimeoutError: 'too late'"),
        (PermissionError(errno.EACCES, "Denied", b"m\xff"), 2, r"lockstep: error: m\udcff: Denied"),
        (MemoryError(), 2, "lockstep: error: out of memory; a shorter prompt needs less"),
        (KeyboardInterrupt(), 130, "lockstep: interrupted"),
        (BrokenPipeError(), 0, ""),
        (SystemExit(143), 143, ""),
        (SystemExit(None), 0, ""),
        (ValueError("x\ny\x1b"), 70, "lockstep: internal error: ValueError: 'x\\x0ay\\x1b' (this is"
         " a bug in Lockstep; LOCKSTEP_DEBUG=1 shows where)"),
        (RecursionError("deep"), 70, "lockstep: internal error: RecursionError: 'deep' (this is"
         " a bug in Lockstep; LOCKSTEP_DEBUG=1 shows where)"),
        (PanicException("boom"), 2, "lockstep: error: a library cannot read this: 'boom'"),
    ],
)  # fmt: skip
def test_an_exception_is_a_line_and_a_code(capsys, error, code, line):
    def command() -> int:
        raise error

    assert guarded(command) == code
    assert capsys.readouterr() == ("", f"{line}\n" if line else "")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("explain", "m", "d"), "; a shorter prompt needs less"),
        (("chat", "m"), "; a shorter prompt needs less"),
        (("dump", "validate", "d"), ""),
        (("quantize", "m", "out"), ""),
        (("fuse", "m", "a", "out"), ""),
    ],
)
def test_a_shorter_prompt_is_the_advice_where_there_is_one(capsys, monkeypatch, command, hint):
    def run(options):
        raise MemoryError("Unable to allocate 3 GiB")

    monkeypatch.setattr(import_module(f"lockstep.parity.cli.{command[0]}"), "run", run)
    assert main(command) == 2
    assert capsys.readouterr().err == f"lockstep: error: out of memory{hint}\n"


def test_what_is_left_at_the_end_is_looked_at_no_more(monkeypatch):
    """By law: of a process that is a command; not of one that calls it."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr("sys.argv", ["lockstep", "faults"])
    assert main(["faults"]) == 0 and not frozen
    assert main() == 0 and frozen


def test_the_code_of_a_command_is_passed_on():
    assert [guarded(lambda code=code: code) for code in (0, 1, 2)] == [0, 1, 2]


def test_a_traceback_is_for_those_who_ask(capsys, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_DEBUG", "1")
    assert guarded(lambda: [][1]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31m\r\x00\x9b\x7f", r"\x1b[31m\x0d\x00\x9b\x7f"),
        ("\u202e\u2066\ufeff\ud800", r"\u202e\u2066\ufeff\ud800"),
        ("你好\u3000世界\xa0!", "你好\u3000世界\xa0!"),
        ("می\u200cخواهم 👩\u200d👧 é", "می\u200cخواهم 👩\u200d👧 é"),
        ("::error::x", r"\x3a:error::x"),
        ("a\n \u3000::error::x", "a\n \u3000\\x3a:error::x"),
        ("a::b ##[group]", r"a::b \x23#[group]"),
    ],
)
def test_what_is_printed_steers_nothing_and_letters_stay(text, shown):
    assert printable(text) == shown


def test_text_to_a_file_comes_in_lines(capsys):
    with Speech(quiet=False) as speech:
        for piece in ("a", ":", "b\n:", ":error::", "c"):
            speech(piece)
        assert capsys.readouterr().out == "a:b\n"
    assert capsys.readouterr().out == r"\x3a:error::c"


def test_text_to_a_terminal_comes_as_it_is_made(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Speech(quiet=False) as speech:
        speech("a")
        assert capsys.readouterr().out == "a"
    with Speech(quiet=True) as speech:
        speech("b\n")
    assert capsys.readouterr().out == ""


def test_warnings_are_one_line(capsys):
    warn([])
    assert capsys.readouterr().err == ""
    warn(["a\nb\x1b" + "x" * 1000, "c", "d"])
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.startswith(r"lockstep: warning: a\x0ab\x1bxx")
    assert line.endswith("... (and 2 more)\n") and len(line) < 410


def test_a_table_is_as_wide_as_its_cells():
    assert table([("a", "1"), ("bb", "22")], right=frozenset([1])) == "a    1\nbb  22"
    assert table([]) == ""
