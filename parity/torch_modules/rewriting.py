"""Run torch code with some of the operations below it exchanged: in float64, or in another order.

transformers' modules widen to float32 and no further, wherever they think it matters. A mode that
sees every operation of aten needs to know none of them.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

Operation = Callable[..., Any]


@contextmanager
def exact() -> Iterator[None]:
    """Compute everything in float64 inside of a block, whatever dtype the code asks for."""
    import torch

    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what numbers of Python become
    try:
        with mode_class()(widened):
            yield
    finally:
        torch.set_default_dtype(usual)


@contextmanager
def exchanging(operations: Mapping[str, Operation]) -> Iterator[None]:
    """Compute with other versions of the operations that are named, such as `aten.silu.default`.

    Each takes the right one first.
    """

    def changed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        other = operations.get(spelled(func))
        return func(*args, **kwargs) if other is None else other(func, *args, **kwargs)

    with mode_class()(changed):
        yield


def widened(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operation with every float in float64, but what it writes to left as it is."""
    import torch

    low = (torch.float32, torch.bfloat16, torch.float16)
    options = {
        name: torch.float64 if name == "dtype" and value in low else value
        for name, value in kwargs.items()
    }

    def up(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(up, value))
        return value.double() if isinstance(value, torch.Tensor) and value.dtype in low else value

    wide = (value if kept else up(value) for value, kept in zip(args, written(func), strict=False))
    return func(*wide, **{name: up(value) for name, value in options.items()})


@cache  # a pass asks for it by the thousand, of some forty operations
def spelled(func: Any) -> str:
    """Return the name of an operation, such as `aten.silu.default`."""
    return str(func)


@cache
def written(func: Any) -> list[bool]:
    """Say of each argument of an operation whether it writes to it."""
    return [bool(one.alias_info and one.alias_info.is_write) for one in func._schema.arguments]


@cache
def mode_class() -> Any:
    """Return a mode that hands every call to a function; made when torch is first needed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Rewriting(TorchDispatchMode):
        def __init__(self, call: Callable[[Any, Any, dict[str, Any]], Any]):
            super().__init__()
            self.call = call

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return self.call(func, args, dict(kwargs or {}))

    return Rewriting
