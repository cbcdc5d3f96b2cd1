"""A run that leaves out a test fails, if LOCKSTEP_NO_SKIPS is set: it would not be missed."""

import os
from typing import Any

import pytest

LEFT_OUT = "lockstep_deselected"
DESELECTED = pytest.StashKey[int]()  # of the first process, as the others told it


def asked() -> bool:
    return bool(os.environ.get("LOCKSTEP_NO_SKIPS"))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """End a run that leaves tests out. One of several processes can but tell the first."""
    if not items or not asked():
        return
    config: Any = items[0].config
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(f"LOCKSTEP_NO_SKIPS: {len(items)} tests are deselected")
    config.workeroutput[LEFT_OUT] = config.workeroutput.get(LEFT_OUT, 0) + len(items)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Keep what a process that ends has told; each of them left the same tests out."""
    stash, told = node.config.stash, getattr(node, "workeroutput", {})  # none from one that died
    stash[DESELECTED] = max(stash.get(DESELECTED, 0), told.get(LEFT_OUT, 0))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that skipped a test, or one of whose processes left some out."""
    if exitstatus != pytest.ExitCode.OK or not asked():
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # one of several processes, whose reports come together in the first
        return
    skipped = len(reporter.stats.get("skipped", []))
    left_out = session.config.stash.get(DESELECTED, 0)
    told = [f"{skipped} skipped"] * bool(skipped)
    told += [f"{left_out} tests are deselected"] * bool(left_out)
    if told:
        reporter.ensure_newline()
        reporter.write_line(f"LOCKSTEP_NO_SKIPS: {', '.join(told)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
