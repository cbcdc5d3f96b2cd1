"""One example: an operation and its arguments, each with the Python that makes it again."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lockstep.reference import ops


@dataclass(frozen=True)
class Given:
    """An argument, and an expression that gives it again."""

    value: Any
    said: str


@dataclass(frozen=True)
class SeenKeys:
    """A mask before anybody wrote it down: ours make their own form of it, others get booleans."""

    queries: np.ndarray
    keys: np.ndarray
    window: int | None

    @property
    def array(self) -> np.ndarray:
        """The mask as (B, 1, L, S) truth values."""
        return ops.causal_mask(self.queries, self.keys, window=self.window)


@dataclass(frozen=True)
class Case:
    """An operation by its name, and its arguments by theirs."""

    op: str
    arguments: Mapping[str, Given]
    dtype: np.dtype

    @property
    def values(self) -> dict[str, Any]:
        return {name: given.value for name, given in self.arguments.items()}

    def lines(self) -> list[str]:
        """Return Python that makes the arguments and calls the operation."""
        long = {name: one for name, one in self.arguments.items() if len(one.said) > 24}
        options = keywords(self.op)
        parts = [
            f"{name}={said(name, one, long)}" if name in options else said(name, one, long)
            for name, one in self.arguments.items()
        ]
        made = [f"{name} = {one.said}" for name, one in long.items()]
        return [*made, f"{self.op}({', '.join(parts)})"]


def said(name: str, given: Given, long: Mapping[str, Given]) -> str:
    return name if name in long else given.said


@cache
def keywords(op: str) -> frozenset[str]:
    """Return the arguments of an operation that are given by keyword."""
    parameters = inspect.signature(getattr(ops, op)).parameters.values()
    return frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def call(namespace: Any, op: str, values: Mapping[str, Any]) -> Any:
    """Call an operation of a namespace: arrays by place, options by name."""
    named = keywords(op)
    places = [value for name, value in values.items() if name not in named]
    options = {name: value for name, value in values.items() if name in named}
    return getattr(namespace, op)(*places, **options)
