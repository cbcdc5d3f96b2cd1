"""A pytest plugin: the fixture `lockstep`, and `--lockstep-refresh` for golden traces.

pytest loads it in every project that has Lockstep installed, so nothing heavy is imported before a
test asks for the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockstep.parity.plugin.assertions import Assertions

REFRESH = "--lockstep-refresh"
REFRESHED = "lockstep-refreshed"
IN_CI = f"{REFRESH} is refused where CI is set: goldens are refreshed on purpose, and committed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep")
    group.addoption(
        REFRESH, action="store_true", help="write the golden traces of the tests that run anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(REFRESH) and is_set(os.environ.get("CI")):
        raise pytest.UsageError(IN_CI)


def is_set(value: str | None) -> bool:
    return (value or "").strip().lower() not in ("", "0", "false", "no")


@pytest.fixture
def lockstep(request: pytest.FixtureRequest) -> Assertions:
    """Hold a port to its model: assert_parity, assert_clean, assert_golden."""
    from lockstep.parity.plugin.assertions import Assertions
    from lockstep.parity.plugin.shelf import Shelf

    def say(line: str) -> None:
        request.node.user_properties.append((REFRESHED, line))

    refresh = bool(request.config.getoption(REFRESH))
    return Assertions(Shelf(request.path, refresh=refresh, say=say))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = list(dict.fromkeys(refreshed(terminalreporter)))
    if lines:
        terminalreporter.section("golden traces")
        for line in lines:
            terminalreporter.write_line(line)


def refreshed(reporter: pytest.TerminalReporter) -> Iterator[str]:
    """Yield what tests refreshed; with pytest-xdist too, where other processes ran them."""
    for reports in reporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == REFRESHED:
                    yield value
