"""The same models and interface, fast: MLX with fused kernels, NumPy where there is no GPU.

`load(path)` gives a model with `forward`, as `lockstep.reference.load` does.
"""

from importlib import import_module
from importlib.util import find_spec

if __name__ != "lockstep.fast":
    raise ImportError(f"import this package as lockstep.fast, not {__name__}")

__all__ = ["cpu", "load", "ops"]


def __getattr__(name: str):
    if name == "load":
        return import_module("lockstep.fast.model").load
    if name in ("ops", "cpu"):
        return import_module(f"lockstep.fast.{name}")
    raise AttributeError(f"module 'lockstep.fast' has no attribute {name!r}")


def __dir__() -> list[str]:
    here = sorted({*globals(), *__all__})
    return here if find_spec("mlx") else [name for name in here if name != "ops"]
