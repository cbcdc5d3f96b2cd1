"""What tests of kernels share."""

import pytest

from lockstep.fast.kernels import by_tiles


@pytest.fixture(params=["without", "unit"])
def unit_or_not(request, monkeypatch):
    """Run a test without the processor's matrix unit for bfloat16, and with it if there is one."""
    if request.param == "without":
        monkeypatch.setattr(by_tiles, "possible", lambda name: False)
