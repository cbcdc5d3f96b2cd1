"""Who compiles a kernel, who waits for that, and what is not done meanwhile."""

import fcntl
import gc
import os
import subprocess
import sys
import time
from threading import Thread
from types import SimpleNamespace

import pytest

from lockstep.fast.kernels import compiling, kernel
from tests.sampled import sampled

WHEN_TOLD = """
import numpy as np
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.product import product
input()
found = product(np.ones((1, 16), np.float32), np.ones((4, 16), np.float16))
print(found.tolist(), sum(kernel._code["run"].stats.cache_misses.values()))
"""


@sampled(0)
def test_processes_that_want_the_same_kernel_compile_it_once(tmp_path):
    """By hand: of two that begin at once one finds what the other has kept."""
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    run = [sys.executable, "-c", WHEN_TOLD]
    both = [subprocess.Popen(run, env=environment, **how) for _ in "ab"]
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    said = sorted(one.communicate()[0] for one in both)
    assert said == [f"{[[16.0] * 4]} {compiled}\n" for compiled in (0, 1)]


def test_an_index_is_written_by_one_alone(tmp_path, monkeypatch):
    """By hand: while it is written nobody else gets its lock."""
    monkeypatch.setattr(kernel, "own_folder", lambda: tmp_path)
    plus_one = kernel.compiled(lambda number: number + 1)
    seen = []

    def save(key, data):
        with (tmp_path / "<lambda>.lock").open("wb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(key)

    monkeypatch.setattr(plus_one._cache._cache_file, "save", save)  # type: ignore[attr-defined]
    assert plus_one(1) == 2 and len(seen) == 1


def test_who_waits_goes_on_when_the_other_is_done(tmp_path):
    """By hand."""
    order = []

    def wait():
        with compiling.alone(tmp_path / "lock"):
            order.append("second")

    with compiling.alone(tmp_path / "lock"):
        other = Thread(target=wait)
        other.start()
        time.sleep(5 * compiling.LOOKS)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    """By hand: the other may have been stopped."""
    monkeypatch.setattr(compiling, "LONGEST", 0.05)
    path = tmp_path / "lock"
    with compiling.alone(path), compiling.alone(path):
        pass


def test_nobody_waits_where_nothing_can_be_locked(tmp_path):
    """By hand: the folder is gone, as when another process found torn code in it."""
    path = tmp_path / "gone" / "lock"
    with compiling.alone(path), compiling.alone(path):
        assert not path.parent.exists()


def test_no_garbage_is_looked_for_meanwhile():
    """By hand; and afterwards it is, also if a kernel does not compile."""

    def compile(signature):
        assert not gc.isenabled()
        return signature / 2

    made = compiling.uncollected(SimpleNamespace(compile=compile))
    assert made.compile(4) == 2
    assert gc.isenabled()
    with pytest.raises(TypeError):
        made.compile("four")
    assert gc.isenabled()
