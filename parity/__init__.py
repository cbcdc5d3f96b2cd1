"""Compare any two runs layer by layer, find where they part, and say what is wrong there."""

from importlib import import_module

if __name__ != "lockstep.parity":
    raise ImportError(f"import this package as lockstep.parity, not {__name__}")

_HOMES = {"check": "check", "diff": "diff", "to_numpy": "arrays"}
__all__ = ["check", "diff", "to_numpy"]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"lockstep.parity.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lockstep.parity' has no attribute {name!r}")
