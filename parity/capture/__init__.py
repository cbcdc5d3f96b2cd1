"""Take the activations out of another framework's model while it runs. See docs/parity/capture.md.

`capture.torch` is the function; the file of its name is loaded when it is first asked for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.parity.capture.torch import capture as torch

__all__ = ["torch"]


def __getattr__(name: str) -> Any:
    if name == "torch":
        return import_module("lockstep.parity.capture.torch").capture
    raise AttributeError(f"module 'lockstep.parity.capture' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `capture.torch` the function: importing the file of that name puts itself there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "torch" and isinstance(value, ModuleType):
            value = value.capture
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
