"""What holds for every test: how Hypothesis searches, and that nothing is skipped unseen."""

import os

import pytest
from hypothesis import settings

from tests.ops_backends import BACKENDS, PRECISIONS, Backend, Precision

# The same examples on every run; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("lockstep", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("lockstep")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """End a run that leaves tests out, if LOCKSTEP_NO_SKIPS is set: they would not be missed."""
    if os.environ.get("LOCKSTEP_NO_SKIPS"):
        raise pytest.UsageError(f"LOCKSTEP_NO_SKIPS: {len(items)} tests are deselected")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that skipped a test, if LOCKSTEP_NO_SKIPS is set."""
    if exitstatus != pytest.ExitCode.OK or not os.environ.get("LOCKSTEP_NO_SKIPS"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # one of several processes, whose reports come together in the first
        return
    skipped = len(reporter.stats.get("skipped", []))
    if skipped:
        reporter.ensure_newline()
        reporter.write_line(f"LOCKSTEP_NO_SKIPS: {skipped} skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Give each namespace of operations in turn."""
    return request.param


@pytest.fixture(scope="session", params=PRECISIONS, ids=lambda one: f"{one[0].name}-{one[1]}")
def precision(request: pytest.FixtureRequest) -> Precision:
    """Give each namespace in each dtype that it computes in."""
    return request.param
