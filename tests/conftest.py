"""What holds for every test: how Hypothesis searches, what processes share, which cases run."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.no_skips import (  # noqa: F401
    pytest_deselected,
    pytest_sessionfinish,
    pytest_testnodedown,
)
from tests.ops_backends import BACKENDS, PRECISIONS, Backend, Precision
from tests.processes import pytest_xdist_setupnodes  # noqa: F401
from tests.sampled import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_configure_node,
    pytest_terminal_summary,
)

# The same examples on every run; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("lockstep", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("lockstep")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the tests: they stay, and a third of the time would go into it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Give each namespace of operations in turn."""
    return request.param


@pytest.fixture(scope="session", params=PRECISIONS, ids=lambda one: f"{one[0].name}-{one[1]}")
def precision(request: pytest.FixtureRequest) -> Precision:
    """Give each namespace in each dtype that it computes in."""
    return request.param
