"""Processes that run tests side by side: threads, and where bytecode is kept. By hand."""

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.processes import THREADS, made_once, pytest_xdist_setupnodes


@pytest.fixture
def told(monkeypatch):
    """Return what two processes on a number of cores are told, and what is done at the end."""

    def tell(cores, **said):
        monkeypatch.setattr(os, "environ", said)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        end = ExitStack()
        pytest_xdist_setupnodes(SimpleNamespace(add_cleanup=end.callback), [None, None])
        return said, end

    return tell


@pytest.mark.parametrize(("cores", "each"), [(1, "1"), (2, "1"), (8, "4"), (None, "1")])
def test_cores_are_shared(told, cores, each):
    assert told(cores)[0] == dict.fromkeys(THREADS, each)


def test_what_was_said_stays(told):
    assert told(8, OMP_NUM_THREADS="3")[0]["OMP_NUM_THREADS"] == "3"


def test_bytecode_is_kept_till_the_end_where_none_is_to_lie_beside_the_sources(told):
    said, end = told(2, PYTHONDONTWRITEBYTECODE="1")
    folder = Path(said["PYTHONPYCACHEPREFIX"])
    assert "PYTHONDONTWRITEBYTECODE" not in said and folder.is_dir()
    end.close()
    assert not folder.exists()


def test_a_folder_is_made_once_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    made = []

    def make(folder):
        made.append(folder)
        (folder / "what").write_text("here")
        assert len(made) > 1, "the first fails"

    def found(own):
        return made_once(SimpleNamespace(getbasetemp=lambda: tmp_path / own), "demo", make)

    with pytest.raises(AssertionError):
        found("gw0")
    assert {(found(own) / "what").read_text() for own in ("gw0", "gw1", "gw0")} == {"here"}
    assert len(made) == 2
