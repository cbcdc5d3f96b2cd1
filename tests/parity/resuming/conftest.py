"""What ends a trace early."""

import os

import pytest

from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.resuming.kept_trace import KeptTrace


class Cut(KeyboardInterrupt):
    """What ends a run before it writes one tap more."""


def fill_disk(file):
    """Let an open file take nothing more: by hand, it is /dev/full from here on."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    os.close(full)


@pytest.fixture
def disk_full_at(monkeypatch):
    """Return what runs something while a method of a class finds the disk full, if `now` says so.

    `file` says which open file of the object that is called takes nothing then.
    """

    def run(owner, method, now, file, something):
        own = getattr(owner, method)

        def call(self, *arguments):
            if now(self, *arguments):
                fill_disk(file(self))
            return own(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, method, call)
            return something()

    return run


@pytest.fixture
def cut(monkeypatch):
    """Return what runs a trace until so many taps more are written."""

    def run(after, *arguments, error=Cut, **options):
        written, left = KeptTrace.__call__, [after]

        def call(self, name, value):
            if self.record(name) is None:
                left[0] -= 1
                if left[0] < 0:
                    raise error
            written(self, name, value)

        with monkeypatch.context() as patch:
            patch.setattr(KeptTrace, "__call__", call)
            with pytest.raises(error):
                trace_run(*arguments, resume=True, **options)

    return run


@pytest.fixture
def check_cuts(cut, tmp_path):
    """Return what cuts a run at several places, one after another, and looks at its bytes.

    It returns how many operations the last run made again.
    """

    def run(model, tokens, places, globs=None, decode=1, **more):
        path, whole = tmp_path / "t", tmp_path / "whole"
        told = {"globs": globs, "decode": decode, **more}
        made, done = trace_run(model, tokens, whole, **told), 0
        for place in places:
            cut(int(place * made["taps"]) - done, model, tokens, path, **told)
            done = int(place * made["taps"])
            assert not path.exists() and (tmp_path / "t.part").exists()
        again = trace_run(model, tokens, path, resume=True, **told)
        assert path.read_bytes() == whole.read_bytes()
        assert sorted(one.name for one in tmp_path.iterdir()) == ["t", "whole"]
        assert again["resumed"]["taps"] == done and again["taps"] == made["taps"]
        return again["resumed"]["again"]

    return run
