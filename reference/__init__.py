"""The oracle: every operation of inference in plain NumPy, written to be read.

`load(path)` gives a model with `forward`; `ops` are the operations. `models/qwen3.py` is a whole
model; `docs/reading-order.md` leads from the first operation to a text.
"""

from importlib import import_module

if __name__ != "lockstep.reference":
    raise ImportError(f"import this package as lockstep.reference, not {__name__}")

__all__ = ["load", "ops"]


def __getattr__(name: str):
    if name == "load":
        return import_module("lockstep.reference.model").load
    if name == "ops":
        return import_module("lockstep.reference.ops")
    raise AttributeError(f"module 'lockstep.reference' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
