"""Of long proofs `make test` does the hardest, and draws others; `make test-peers` does them all.

Of a test that has very many cases it draws some too, but for those that hold models to witnesses,
or readers to files that lie; `make test-all` does those too.

What is not drawn is not collected: it counts neither as skipped nor as deselected. Whoever names
tests, by their file, by `::`, by `-k` or by `--lf`, gets every case of them.
"""

import os
import random
import secrets
from collections import Counter, defaultdict
from itertools import chain
from typing import Any

import pytest

MANY = 16  # cases of a test without a mark, of which no more are run
# Where tests have all of their cases.
WHOLE = ("tests/witnesses/", "tests/peers/", "tests/long/", "tests/reference/checkpoint/",
         "tests/parity/dumps/")  # fmt: skip
SEED = pytest.StashKey[int]()  # of this run, the same in each of its processes
SHARED = "lockstep_seed"  # as the first process tells it the others


def sampled(count: int, *hardest: str) -> pytest.MarkDecorator:
    """Mark a test, or with one mark several of a file: of their cases together run `count`.

    None, where it takes long and lighter tests beside it fail first. `hardest` are among them in
    every run; nothing is told where all are as hard. Each is called as pytest does: `test_name`,
    `test_name[case]`, or where one test is marked `case` alone.
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
    if os.environ.get("LOCKSTEP_MARKED"):
        items[:] = [item for item in items if item.get_closest_marker("sampled")]
    if is_every_case_asked(config):
        return
    samples, left_out = defaultdict[int, list[pytest.Item]](list), set[pytest.Item]()
    marks = {id(mark): mark for item in items for mark in item.iter_markers("sampled")}
    for item in items:
        for mark in item.iter_markers("sampled"):
            samples[id(mark)].append(item)
    for key, cases in samples.items():
        left_out |= set(cases) - drawn(cases, *marks[key].args, seed=config.stash[SEED])
    for cases in unmarked(items):
        kept = drawn(cases, MANY, seed=config.stash[SEED])
        left_out |= set(cases) - kept
        for case in kept:
            case.add_marker("sampled")  # so that the seed is told
    items[:] = [item for item in items if item not in left_out]


def unmarked(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the cases of each test that has more than many and does not say how many are run."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") is None and not item.nodeid.startswith(WHOLE):
            tests[item.nodeid.partition("[")[0]].append(item)
    return [cases for cases in tests.values() if len(cases) > MANY]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how the same are drawn again: cases of long tests, and what peers are given."""
    config = terminalreporter.config
    reports = chain.from_iterable(terminalreporter.stats.values())
    words = {word for report in reports for word in getattr(report, "keywords", ())}
    if "peers" in words or ("sampled" in words and not is_every_case_asked(config)):
        terminalreporter.write_line(f"LOCKSTEP_SEED={config.stash[SEED]} draws the same again")


def is_every_case_asked(config: pytest.Config) -> bool:
    options = config.option  # of which the second is a plugin's, which need not be there
    named = options.keyword or any("::" in it or it.endswith(".py") for it in config.args)
    timed = getattr(options, "benchmark_enable", False)  # of all operations, or of those named
    again = getattr(options, "lf", False)  # what failed may be drawn by that seed alone
    asked = any(map(os.environ.get, ("LOCKSTEP_EVERY_CASE", "LOCKSTEP_MARKED")))
    return bool(named or timed or again or asked)


def drawn(cases: list[Any], count: int, *hardest: str, seed: int) -> set[Any]:
    """Return the hardest cases, and so many others by the seed that there are `count`."""
    names = {case: {case.name, case.name.partition("[")[2].removesuffix("]")} for case in cases}
    kept = [case for case in cases if names[case] & set(hardest)]
    missing = set(hardest).difference(*names.values())
    if missing or not len(kept) <= count < len(cases):
        found = f"{len(cases)} cases, without {sorted(missing)}" if missing else len(cases)
        raise ValueError(f"{cases[0].nodeid}: sampled{(count, *hardest)} of {found}")
    others = [case for case in cases if case not in kept]
    random.Random(f"{seed} {cases[0].nodeid}").shuffle(others)
    return {*kept, *tests_in_turn(kept, others)[: count - len(kept)]}


def tests_in_turn(kept: list[Any], others: list[Any]) -> list[Any]:
    """Return cases so that each test has one, before one that has some has another."""
    times = Counter(law_of(case) for case in kept)
    turns = dict[Any, int]()
    for case in others:
        turns[case] = times[law_of(case)]
        times[law_of(case)] += 1
    return sorted(others, key=turns.__getitem__)


def law_of(case: Any) -> str:
    return case.name.partition("[")[0]
