"""Running cases in one process or in several."""

import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tests.proof.run.case import Case
from tests.proof.run.one import run
from tests.proof.run.places import Places
from tests.witnesses import build

PLACES: list[Places] = []  # of this process


def results(
    cases: list[Case], workers: int, limit: int, folder: str, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield outcomes as they come, until the time is over."""
    if workers == 1:
        for case in cases:
            if time.monotonic() > deadline:
                return
            yield outcome_of(case, limit)
        return
    waiting = iter(cases)
    with ProcessPoolExecutor(workers, get_context("spawn"), prepare, (folder,)) as pool:
        running = {pool.submit(outcome_of, case, limit) for case in islice(waiting, 2 * workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()
            if time.monotonic() < deadline:
                running |= {
                    pool.submit(outcome_of, case, limit) for case in islice(waiting, len(done))
                }


def prepare(folder: str) -> None:
    """Make a process ready: one thread, no messages, and checkpoints of its own."""
    build.settle()
    warnings.simplefilter("ignore")  # a broken port overflows
    torch.set_num_threads(1)
    PLACES[:] = [Places(Path(tempfile.mkdtemp(dir=folder)))]


def outcome_of(case: Case, limit: int) -> dict[str, Any]:
    began = time.monotonic()
    found = run(case, PLACES[0], limit=limit)
    return {"case": asdict(case), "outcomes": found, "took": round(time.monotonic() - began, 2)}
