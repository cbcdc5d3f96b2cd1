"""Lockstep: is this port of a language model right, and if not, what exactly is wrong?

`lockstep.reference` is the oracle in NumPy, `lockstep.fast` the same interface in MLX and for a
CPU, `lockstep.parity` compares any two runs. Each loads when it is first used.
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["__version__", "fast", "parity", "reference"]


def __getattr__(name: str):
    if name in ("reference", "fast", "parity"):
        return import_module(f"lockstep.{name}")
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
