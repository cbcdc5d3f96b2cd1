"""Processes that run tests side by side: threads, and where bytecode is kept. By hand."""

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.processes import THREADS, pytest_xdist_setupnodes


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
