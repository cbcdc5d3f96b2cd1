"""Compare any two runs layer by layer, find where they part, and say what is wrong there."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ != "lockstep.parity":
    raise ImportError(f"import this package as lockstep.parity, not {__name__}")

if TYPE_CHECKING:
    from lockstep.parity import capture as capture
    from lockstep.parity.arrays import to_numpy
    from lockstep.parity.check import check
    from lockstep.parity.diff import diff
    from lockstep.parity.explain import explain

_HOMES = {
    "check": "check",
    "diff": "diff",
    "explain": "explain",
    "to_numpy": "arrays",
}
__all__ = ["check", "diff", "explain", "to_numpy"]


def __getattr__(name: str) -> Any:
    if name == "capture":
        return import_module("lockstep.parity.capture")
    if name in _HOMES:
        return getattr(import_module(f"lockstep.parity.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lockstep.parity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "capture"})


class _Package(ModuleType):
    """Keeps `parity.check` the function: importing the file of that name would put itself there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
