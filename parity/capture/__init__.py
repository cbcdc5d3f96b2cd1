"""Take the activations out of another framework's model while it runs. See docs/parity/capture.md.

`capture.torch`, `capture.mlx` and `capture.llama_cpp` are functions; the file of each name is
loaded when it is first asked for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.parity.capture.llama_cpp import capture as llama_cpp
    from lockstep.parity.capture.mlx import capture as mlx
    from lockstep.parity.capture.torch import capture as torch

__all__ = ["llama_cpp", "mlx", "torch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"lockstep.parity.capture.{name}").capture
    raise AttributeError(f"module 'lockstep.parity.capture' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps each name the function: importing the file of that name puts itself there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value = value.capture
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
