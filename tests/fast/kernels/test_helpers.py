"""Work that threads share: each place is done once, whoever comes, and nobody is waited for."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lockstep.fast.kernels import helpers as module
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.helpers import Helpers
from lockstep.fast.kernels.kernel import kernel as kernel_of
from lockstep.fast.kernels.sharing import (
    LINE,
    board,
    clock,
    count,
    read,
    serve,
    step_aside,
    write,
)

THREADS = 3


@kernel_of
def marked(place, marks, rounds):
    """Count a visit of a place, after some work."""
    kept = 0.0
    for step in range(rounds):
        kept += np.sqrt(step + place)
    marks[place] += 1 if kept >= 0 else 2


@pytest.fixture
def crew(monkeypatch):
    """Three threads, whatever the machine has."""
    monkeypatch.setattr(kernel, "SMALL", 0)
    monkeypatch.setattr(module.SETTINGS, "NUMBA_NUM_THREADS", THREADS)
    crew = Helpers()
    monkeypatch.setattr(kernel, "helpers", crew)
    yield crew
    crew.leave()


@pytest.mark.parametrize("places", [0, 1, 2, 23, 24, 25, 1000])
def test_every_place_is_done_once(places, crew):
    """By hand: fewer places than pieces, as many, and more. Again and again, at any pace."""
    for rounds in [0, 1, 500] * 20:
        marks = np.zeros(places, np.int64)
        marked(1, places, marks, rounds)
        np.testing.assert_array_equal(marks, 1)
    assert len(crew.threads) == (THREADS - 1 if places > 1 else 0)


def test_threads_that_sleep_are_woken(crew):
    """By hand: after a while without work all sleep, and the next job has them look again."""
    marked(1, 24, np.zeros(24, np.int64), 1)
    deadline = time.monotonic() + 60
    while len(crew.asleep) < THREADS - 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    marks = np.zeros(24, np.int64)
    marked(1, 24, marks, 10)
    np.testing.assert_array_equal(marks, 1)


def test_who_is_called_on_the_way_to_sleep_looks_again(monkeypatch):
    """By hand: a call that finds nobody asleep is heard by the thread that had just looked."""
    monkeypatch.setattr(module.SETTINGS, "NUMBA_NUM_THREADS", 2)
    crew, rounds = Helpers(), []

    def serve(board, wait):
        rounds.append(wait)
        while not crew.threads:
            time.sleep(0)
        if len(rounds) == 1:
            crew.call(serve)

    crew.call(serve)
    deadline = time.monotonic() + 60
    while not crew.asleep:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    crew.leave()
    assert rounds == [module.WAIT] * 2


def test_a_bell_that_somebody_rings_is_not_taken_back():
    """By hand: who took it off the list rings it, and the next sleep would be cut short."""
    crew, bell = Helpers(), threading.Lock()
    crew.asleep.append(bell)
    assert crew.taken_back(bell)
    assert not crew.taken_back(bell)


def test_a_bell_that_is_taken_back_while_all_are_rung_is_not_missed():
    """By hand: another thread takes the last one back between a look at the list and the next."""

    class Hasty(list):
        def __bool__(self):
            self.clear()
            return True

    crew, bell = Helpers(), threading.Lock()
    bell.acquire()
    crew.asleep, crew.threads = Hasty([bell]), [threading.current_thread()]
    crew.call(lambda board, wait: None)
    assert not bell.locked()


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_machine_code_reads_the_clock():
    """By a second computation: Python's reading of the same clock, before and after."""
    read = kernel.unkept(lambda: clock())
    read()
    before, found, after = now(), read(), now()
    assert before <= found <= after


@pytest.mark.parametrize("wait", [1, 300_000, 5_000_000])
def test_a_thread_looks_for_as_long_as_it_should(wait):
    """By law: never shorter, on whatever processor."""
    helped = kernel.unkept(serve)
    helped(board(), 1)
    before = now()
    helped(board(), wait)
    assert now() - before >= wait


def test_a_job_is_done_though_no_helper_comes(crew, monkeypatch):
    """By hand: threads that never look for work are not waited for."""
    monkeypatch.setattr(kernel, "served", lambda board, wait: None)
    marks = np.zeros(100, np.int64)
    marked(1, 100, marks, 10)
    np.testing.assert_array_equal(marks, 1)


def test_where_no_thread_can_be_started_one_does_it_all(crew, monkeypatch):
    """By hand: as at the end of a process, or at a limit of the system."""

    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    marks = np.zeros(100, np.int64)
    marked(1, 100, marks, 10)
    np.testing.assert_array_equal(marks, 1)
    assert not crew.threads


HERE, MET = 0, LINE  # where two places count themselves in, and where they say that they met


@kernel_of
def meeting(place, seen, patience):
    """Wait for another place that is being done at the same time."""
    count(seen, HERE, 1)
    since = clock()
    while read(seen, MET) == 0 and clock() - since < patience:
        if read(seen, HERE) > 1:
            write(seen, MET, 1)
        step_aside()
    count(seen, HERE, -1)


def test_helpers_do_take_part(crew):
    """By law: two places are at work at once only if a second thread is at one of them.

    The first job is compiled, so its helpers may sleep again before it begins; on a busy machine
    the next one may be too early for them, too.
    """
    seen = np.zeros(2 * LINE, np.int64)
    for patience in (0, *[10**8] * 20):  # nanoseconds at each place: seconds if nobody comes
        meeting(1, 24, seen, patience)
        if seen[MET]:
            return
    pytest.fail("no helper came")


def test_several_threads_of_a_program_may_start_kernels(crew):
    """By hand: each has its own places, and each of them is done once."""
    marks = [np.zeros(200, np.int64) for _ in range(4)]

    def repeat(own):
        for _ in range(50):
            marked(1, 200, own, 20)

    threads = [threading.Thread(target=repeat, args=(own,)) for own in marks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(marks, 50)


ENDS = """
import numpy as np
from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.product import product
kernel.SMALL = 0
print(product(np.ones((1, 16), np.float32), np.ones((4096, 16), np.float16)).sum())
"""


def test_a_process_ends_while_its_helpers_look_for_work():
    """By hand: without a word, and at once."""
    environment = os.environ | {"NUMBA_NUM_THREADS": "4"}
    run = [sys.executable, "-c", ENDS]
    result = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "65536.0\n", "")
