"""A journal that another run deletes as it ends, just before it is locked here. By hand."""

import fcntl

import pytest

from lockstep.parity.resuming import journal
from lockstep.parity.resuming.journal import TRIES, Journal
from lockstep.reference.checkpoint.errors import InputError

RUN = {"journal": "test"}


@pytest.fixture
def before_lock(monkeypatch):
    """Return what lets something happen just before each of so many locks."""

    def patch(happens, times):
        own, left = fcntl.flock, [happens] * times

        def flock(file, how):
            if left:
                left.pop()()
            return own(file, how)

        monkeypatch.setattr(journal.fcntl, "flock", flock)

    return patch


@pytest.mark.parametrize("after", [lambda path: None, lambda path: path.touch()])
def test_a_file_that_was_deleted_before_the_lock_is_opened_again(before_lock, tmp_path, after):
    """Deleted, and perhaps made anew by a third run."""
    path = tmp_path / "journal"

    def deleted():
        path.unlink()
        after(path)

    before_lock(deleted, 1)
    mine = Journal(path, RUN)
    mine.add({"tap": "logits"})
    mine.close()
    again = Journal(path, RUN)
    assert again.records == [{"tap": "logits"}]
    again.remove()


def test_a_file_that_a_third_run_has_locked_is_refused(before_lock, tmp_path):
    path, others = tmp_path / "journal", []

    def taken():
        path.unlink()
        others.append(Journal(path, RUN))

    before_lock(taken, 1)
    with pytest.raises(InputError, match="another run is writing it"):
        Journal(path, RUN)
    others[0].remove()


def test_a_file_that_is_always_deleted_is_not_waited_for(before_lock, tmp_path):
    before_lock((tmp_path / "journal").unlink, TRIES)
    with pytest.raises(InputError, match="another run is writing it"):
        Journal(tmp_path / "journal", RUN)
