"""Operations that are carried out when somebody looks at their result, or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Later:
    """A value that is made when it is looked at, and only once."""

    def __init__(self, make: Callable[[], Any]):
        self._make: Callable[[], Any] | None = make
        self._value: Any = None

    def now(self) -> Any:
        if self._make is not None:
            make, self._make = self._make, None  # what it was made of may go
            self._value = make()
        return self._value

    def copy(self) -> Later:
        return Later(lambda: self.now().copy())

    def __getitem__(self, key: Any) -> Later:
        return Later(lambda: self.now()[key])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now(), name)

    def __iter__(self) -> Any:
        return iter(self.now())

    def __ne__(self, other: object) -> Any:
        return self.now() != other

    __hash__ = object.__hash__


def now(value: Any) -> Any:
    """Return a value itself, whether it is there or to be made."""
    return value.now() if isinstance(value, Later) else value


class LaterOps:
    """A namespace of operations that wraps another: each is carried out later, until `at_once`.

    `called` is told the name of each that was carried out before that.
    """

    def __init__(self, ops: Any, at_once: Callable[[], bool], called: Callable[[str], None]):
        self._ops, self._at_once, self._called = ops, at_once, called

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._ops, name)

        def carried_out(*inputs: Any, **options: Any) -> Any:
            if not self._at_once():
                self._called(name)
            found = {key: now(value) for key, value in options.items()}
            return operation(*map(now, inputs), **found)

        def put_off(*inputs: Any, **options: Any) -> Any:
            if self._at_once():
                return carried_out(*inputs, **options)
            return Later(lambda: carried_out(*inputs, **options))

        return put_off
