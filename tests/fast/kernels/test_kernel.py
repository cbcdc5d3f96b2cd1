"""Where machine code is kept, and what a process that forked off may still do."""

import os
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from numba import types
from numba.np.arrayobj import make_array

from lockstep.fast import kernels
from lockstep.fast.cpu import linear
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.kernel import cache_folder
from lockstep.fast.kernels.lanes import instruction
from lockstep.fast.kernels.product import product
from lockstep.fast.kernels.tile import I64
from tests.draws import normal, packed_matrix
from tests.sampled import sampled
from tests.tolerances import assert_close

FORK = """
import os
import numpy as np
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.product import product
kernel.SMALL = 0
weight, x = np.ones((4, 16), np.float16), np.ones((1, 16), np.float32)
assert product(x, weight).tolist() == [[16.0] * 4]
child = os.fork()
if child == 0:
    os._exit(product(x, weight).tolist() != [[16.0] * 4])
assert os.waitpid(child, 0)[1] == 0
"""


def count_once(counts, out):
    counts[0] += 1
    out[:] = 0


@kernel.kernel(before=count_once)
def copy_counts(place, counts, out):
    out[place] = counts[0]


@pytest.mark.parametrize("small", [0, 2**62])
def test_what_is_done_before_is_done_once(small, monkeypatch):
    """By hand: before any place, however many cores there are."""
    monkeypatch.setattr(kernel, "SMALL", small)
    counts, out = np.array([6]), np.empty(1000, np.int64)
    copy_counts(1, 1000, counts, out)
    assert counts.tolist() == [7] and (out == 7).all()


@instruction
def counted(_, array):
    """Return the address of what counts who uses an array; 0 if nothing does."""

    def generate(context, builder, signature, arguments):
        given = make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(given.meminfo, I64)

    return types.int64(array), generate


@kernel.kernel
def tell_counted(place, parts, out):
    out[place] = counted(out) + counted(parts[0])


@pytest.mark.parametrize("small", [0, 2**62])
def test_no_place_counts_who_uses_an_array(small, monkeypatch):
    """By hand: cores that count the same array wait for each other."""
    monkeypatch.setattr(kernel, "SMALL", small)
    out = np.full(100, 7)
    tell_counted(1, 100, (np.ones(3),), out)
    assert (out == 0).all()


def test_machine_code_is_kept_under_all_its_sources(tmp_path, monkeypatch):
    """By law: one changed letter anywhere is another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    (folder / "formats").mkdir(parents=True)
    (folder / "kernel.py").write_text("a = 1\n")
    (folder / "formats/one.py").write_text("b = 1\n")
    before = cache_folder(folder)
    assert before.is_relative_to(tmp_path / "cache")
    assert cache_folder(folder) == before
    (folder / "formats/one.py").write_text("b = 2\n")
    assert cache_folder(folder) != before


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    """By hand: Numba's own folder does not know all sources."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel, "own_folder", lambda: tmp_path / "file" / "cache")
    unkept = kernel.compiled(lambda: 1)
    monkeypatch.setattr(kernel, "own_folder", lambda: tmp_path / "cache")
    kept = kernel.compiled(lambda: 1)
    names = [type(one._cache).__name__ for one in (unkept, kept)]  # type: ignore[attr-defined]
    assert names == ["NullCache", "FunctionCache"]


ONCE = """
import numpy as np
from lockstep.fast.kernels.product import product
print(product(np.ones((1, 16), np.float32), np.ones((4, 16), np.float16)).tolist())
"""


@sampled(0)
def test_torn_machine_code_is_made_anew(tmp_path):
    """By hand: every file of the cache is cut in half, and the result is what it was."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    found = []
    for _ in range(3):
        run = [sys.executable, "-c", ONCE]
        result = subprocess.run(run, env=environment, capture_output=True, text=True)
        found.append((result.returncode, result.stdout, result.stderr))
        files = [path for path in tmp_path.rglob("*.nb?")]
        for path in files if len(found) == 1 else []:
            os.truncate(path, path.stat().st_size // 2)
        # The second process threw them away and kept nothing, the third one has them again.
        assert bool(files) == (len(found) != 2)
    assert found == [(0, f"{[[16.0] * 4]}\n", "")] * 3


def test_processes_that_compile_at_once_keep_their_code_apart(tmp_path, monkeypatch):
    """By hand: two that see the same empty index name their files differently."""
    monkeypatch.setattr(kernel, "own_folder", lambda: tmp_path)
    both = [kernel.compiled(lambda number: number) for _ in "ab"]
    for one, argument in zip(both, (1, 2.0), strict=True):
        one._cache._cache_file.load = lambda key: None  # type: ignore[attr-defined]
        one._cache._cache_file._load_index = dict  # type: ignore[attr-defined]
        assert one(argument) == argument
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


def test_what_other_sources_left_is_removed_after_a_month(tmp_path):
    """By hand."""
    now = time.time()
    for name, days in (("kernels-a", 0), ("kernels-b", 29), ("kernels-c", 31), ("other", 31)):
        (tmp_path / name / "alone").mkdir(parents=True)
        os.utime(tmp_path / name, (now, now - days * 86400))
    kernel.remove_unused(tmp_path / "kernels-a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-a", "kernels-b", "other"]


def test_a_child_of_a_process_with_threads_computes_with_its_own():
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_child_of_a_process_in_the_middle_of_a_kernel_computes_without(monkeypatch):
    """By hand: another thread's lock, which is never opened in the child."""
    weight, x = np.ones((4, 16), np.float16), np.ones((1, 16), np.float32)
    monkeypatch.setitem(kernel._state, "forked", False)
    with kernel.STARTING:
        kernel.after_fork()
    assert product(x, weight) is None
    assert linear(x, weight, None).tolist() == [[16.0] * 4]


@pytest.mark.parametrize("bits", [3, 4])
def test_without_numba_the_result_is_the_same(bits, monkeypatch):
    """By loop: NumPy alone keeps to the same bound."""
    weight, values = packed_matrix(0, 7, 64, bits=bits, group=64, dtype=ml_dtypes.bfloat16)
    x = normal(1, 2, 3, 64)
    found = []
    for installed in (True, False):
        monkeypatch.setattr(kernels, "available", lambda installed=installed: installed)
        found.append(linear(x, weight, None))
        assert_close(found[-1], x.astype(np.float64) @ values.T, kind="sum")
    assert not np.array_equal(*found)  # so both ways were gone
