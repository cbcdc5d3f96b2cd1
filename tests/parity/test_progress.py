"""Progress is for a person who waits: a terminal, and more than a second. By law."""

import io
from types import SimpleNamespace

import pytest

from lockstep.parity.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Return a terminal; pytest puts its own file there again until the test itself begins."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("lockstep.parity.progress.sys", SimpleNamespace(stderr=stream))
    return stream


def work(after=0.0, names=("a", "b")):
    with Progress(len(names), after=after) as progress:
        for name in names:
            progress(name)


def test_a_line_grows_and_is_wiped(terminal):
    work()
    steps = terminal.getvalue().split("\r\x1b[2K")
    assert steps == ["", "█" * 12 + "░" * 12 + " 1/2 a", "█" * 24 + " 2/2 b", ""]


def test_nothing_is_shown_within_the_first_second(terminal):
    work(after=1.0)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_dumb_terminal_is_left_alone(terminal, monkeypatch, term):
    monkeypatch.delenv("TERM") if term is None else monkeypatch.setenv("TERM", term)
    work()
    assert terminal.getvalue() == ""


def test_a_file_or_nothing_at_all_is_left_alone(monkeypatch):
    for stream in (io.StringIO(), None):
        monkeypatch.setattr("lockstep.parity.progress.sys", SimpleNamespace(stderr=stream))
        work()
        assert stream is None or stream.getvalue() == ""


def test_the_line_is_wiped_after_an_error_too(terminal):
    with pytest.raises(KeyboardInterrupt), Progress(1, after=0.0) as progress:
        progress("a")
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_no_name_can_steer_and_no_count_can_overflow(terminal):
    with Progress(0, after=0.0) as progress:
        for _ in range(3):
            progress("\x1b[31m\nx" + "y" * 1000)
    shown = terminal.getvalue().replace("\r\x1b[2K", "")
    assert shown.isprintable()
    assert "0/0" in shown and len(shown) < 3 * 120
