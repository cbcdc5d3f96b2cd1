"""Record which value was computed from which: the dataflow graph of one stage of a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Node:
    """One call of an operation: its name, what went in, and what came out."""

    op: str
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    output: np.ndarray


@dataclass
class Stage:
    """The calls of one stage in order, and the value that each tap reported."""

    nodes: list[Node] = field(default_factory=list)
    taps: dict[str, np.ndarray] = field(default_factory=dict)


class Recorder:
    """A namespace of operations that wraps another and notes every call in `stage`.

    Values are recognised by identity, so the recorder keeps them alive; `take` hands a stage
    over and begins the next, which bounds what is kept.
    """

    def __init__(self, ops: Any):
        self.ops = ops
        self.stage = Stage()

    def __getattr__(self, name: str) -> Callable[..., np.ndarray]:
        operation = getattr(self.ops, name)

        def recorded(*inputs: Any, **options: Any) -> np.ndarray:
            output = operation(*inputs, **options)
            self.stage.nodes.append(Node(name, inputs, options, output))
            return output

        return recorded

    def tap(self, name: str, value: np.ndarray) -> None:
        """Note a tap; pass this as `trace` to the model that runs on the recorder."""
        self.stage.taps[name] = value

    def take(self) -> Stage:
        """Return what was recorded since the last call."""
        stage, self.stage = self.stage, Stage()
        return stage
