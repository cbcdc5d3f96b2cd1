"""What processes share that run tests: cores, bytecode of their children, signals, long set-up.

BLAS would start as many threads in each as there are cores, and they spin while they wait for each
other. Commands that tests start would compile every module anew where Python writes no bytecode.
"""

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Say it before the processes start; a number of threads that was said already stays."""
    for name in THREADS:
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // len(specs))))
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # then not beside the sources either
        folder = TemporaryDirectory(prefix="bytecode-")
        config.add_cleanup(folder.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = folder.name


def made_once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that one process makes for all: the others wait, and nobody changes it."""
    root = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has a folder of its own in a common one
        root = root.parent
    with (root / f"{name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / name).exists():
            with TemporaryDirectory(dir=root) as folder:  # of one that fails nothing is left
                make(Path(folder))
                shutil.copytree(folder, root / f"{name}.part", dirs_exist_ok=True)
            (root / f"{name}.part").rename(root / name)  # whole, or not there
    return root / name


@contextmanager
def heard(kind: signal.Signals) -> Iterator[None]:
    """Let a child that starts here hear a signal: it inherits what this process ignores, as one
    that runs in the background may.
    """
    before = signal.signal(kind, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(kind, before)
