"""Of long proofs a run does the hardest and draws some others; `make test-all` does them all.

What is not drawn is not collected: it counts neither as skipped nor as deselected. Whoever names
tests, by `::` or by `-k`, gets every case of them.
"""

import os
import random
import secrets
from collections import defaultdict
from typing import Any

import pytest

SEED = pytest.StashKey[int]()  # of this run, the same in each of its processes
SHARED = "lockstep_seed"  # as the first process tells it the others


def sampled(count: int, *hardest: str) -> pytest.MarkDecorator:
    """Mark a test, or with one mark several of a file: of their cases together run `count`.

    `hardest` are among them in every run; none where all are as hard. Each is called as pytest
    does: `test_name`, `test_name[case]`, or where one test is marked `case` alone.
    """
    return pytest.mark.sampled(count, *hardest)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of this run, unless it is told or the first process has drawn it."""
    config.addinivalue_line("markers", "sampled(count, *hardest): of these cases run so many")
    shared = getattr(config, "workerinput", {}).get(SHARED)
    config.stash[SEED] = int(shared or os.environ.get("LOCKSTEP_SEED") or secrets.randbits(31))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_configure_node(node: Any) -> None:
    node.workerinput[SHARED] = node.config.stash[SEED]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_every_case_asked(config):
        return
    samples, left_out = defaultdict[int, list[pytest.Item]](list), set[pytest.Item]()
    marks = {id(mark): mark for item in items for mark in item.iter_markers("sampled")}
    for item in items:
        for mark in item.iter_markers("sampled"):
            samples[id(mark)].append(item)
    for key, cases in samples.items():
        left_out |= set(cases) - drawn(cases, *marks[key].args, seed=config.stash[SEED])
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how the same are drawn again."""
    config = terminalreporter.config
    if not is_every_case_asked(config):
        seed = config.stash[SEED]
        terminalreporter.write_line(f"LOCKSTEP_SEED={seed} draws these cases of long tests again")


def is_every_case_asked(config: pytest.Config) -> bool:
    named = config.option.keyword or any("::" in argument for argument in config.args)
    return bool(named or os.environ.get("LOCKSTEP_EVERY_CASE"))


def drawn(cases: list[Any], count: int, *hardest: str, seed: int) -> set[Any]:
    """Return the hardest cases, and so many others by the seed that there are `count`."""
    names = {case: {case.name, case.name.partition("[")[2].removesuffix("]")} for case in cases}
    kept = [case for case in cases if names[case] & set(hardest)]
    missing = set(hardest).difference(*names.values())
    if missing or not len(kept) <= count < len(cases):
        found = f"{len(cases)} cases, without {sorted(missing)}" if missing else len(cases)
        raise pytest.UsageError(f"{cases[0].nodeid}: sampled{(count, *hardest)} of {found}")
    others = [case for case in cases if case not in kept]
    generator = random.Random(f"{seed} {cases[0].nodeid}")
    return {*kept, *generator.sample(others, count - len(kept))}
