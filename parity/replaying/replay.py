"""Compute a recorded stage again from the port's own values.

Every value that the port dumped replaces the recorded one before anything downstream uses it. What
an operation then gets wrong is its own error; what it inherited is left out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.replaying.recorder import Node, Stage

Known = dict[tuple[Any, ...], tuple[tuple[Any, ...], np.ndarray]]


@dataclass
class Replay:
    """One way of computing again: a namespace of operations and a dtype.

    `carried` holds what earlier stages left for later ones (the stream, the cached keys and
    values), by the identity of the recorded value that it stands for.
    """

    ops: Any
    dtype: np.dtype
    carried: dict[int, np.ndarray] = field(default_factory=dict)

    def stage(
        self, stage: Stage, port: Mapping[str, np.ndarray], known: Known | None = None
    ) -> dict[str, np.ndarray]:
        """Return each tap as computed from the port's nearest values before it.

        A tap that the port did not dump is carried on as replayed, so the piece that is judged
        grows to the next one that it did. Replays that share `known` compute once what they
        compute alike.
        """
        names = names_by_identity(stage)
        known = {} if known is None else known
        replayed: dict[str, np.ndarray] = {}
        for node in stage.nodes:
            value = self.compute(node, known)
            taps = names.get(id(node.output), [])
            replayed |= dict.fromkeys(taps, value)
            dumped = [port[name] for name in taps if name in port]
            taken = dumped[0].astype(self.dtype, copy=False) if dumped else value
            self.carried[id(node.output)] = taken
        return replayed

    def compute(self, node: Node, known: Known) -> np.ndarray:
        """Call the operation of `node` on what stands for its recorded inputs."""
        operation = getattr(self.ops, node.op)
        options = node.options | ({"dtype": self.dtype} if "dtype" in node.options else {})
        inputs = tuple(self.carried.get(id(value), value) for value in node.inputs)
        key = (operation, *map(id, inputs), *sorted(options.items()))
        if key not in known:  # the inputs are kept with the result: a freed one's id comes again
            known[key] = inputs, operation(*inputs, **options)
        return known[key][1]

    def carry(self, stage: Stage, port: Mapping[str, np.ndarray], alive: Collection[int]) -> None:
        """Do of `stage` only what later stages can ask for: its taps are judged already."""
        names, made = names_by_identity(stage), {id(node.output): node for node in stage.nodes}

        def need(key: int) -> None:
            node = made.get(key)
            if node is None or key in self.carried:
                return
            dumped = [port[name] for name in names.get(key, []) if name in port]
            if dumped:
                self.carried[key] = dumped[0].astype(self.dtype, copy=False)
                return
            for value in node.inputs:
                need(id(value))
            self.carried[key] = self.compute(node, {})

        for key in alive:
            need(key)
        self.forget_all_but(alive)

    def forget_all_but(self, alive: Collection[int]) -> None:
        """Drop what no later stage can ask for."""
        self.carried = {key: self.carried[key] for key in self.carried.keys() & alive}


def names_by_identity(stage: Stage) -> dict[int, list[str]]:
    """Return the taps of each recorded value; two names may report one value."""
    names: dict[int, list[str]] = {}
    for name, value in stage.taps.items():
        names.setdefault(id(value), []).append(name)
    return names
