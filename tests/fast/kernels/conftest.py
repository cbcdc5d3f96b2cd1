"""What tests of kernels share."""

import pytest

from lockstep.fast.kernels import again, by_tiles


@pytest.fixture(autouse=True)
def filled_rooms(monkeypatch):
    """Lend rooms of any size, full of what is no number: a kernel that leaves some is seen."""

    def taken(size, right=again.taken):
        room = right(size)
        room.fill(0xFF)
        return room

    monkeypatch.setattr(again, "taken", taken)
    monkeypatch.setattr(again, "LEAST", 1)


@pytest.fixture(params=["without", "unit"])
def unit_or_not(request, monkeypatch):
    """Run a test without the processor's matrix unit for bfloat16, and with it if there is one."""
    if request.param == "without":
        monkeypatch.setattr(by_tiles, "possible", lambda name: False)
