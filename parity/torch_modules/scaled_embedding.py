"""An embedding that a port scales behind its module, where transformers scales it inside."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import unwrapped

TOLD = "{tap} holds rows of the table, which transformers scales by {scale:.6g}: taken as scaled"


def taken_as_scaled(module: Any, port: Alignment, fed: Sequence[Sequence[int]]) -> Alignment:
    """Return the alignment with the embedding as transformers hands it out, if the port's is bare.

    A port that forgets the scale is then wrong wherever the stream is read, and not here. `fed` is
    what each step was fed.
    """
    tap, scaled = tap_of(module), {}
    for number, tokens in enumerate(fed):
        name = f"step.{number}/{tap}" if number else tap
        if name in port.names:
            rows, made = both(module, tokens)
            value = port.read(name, made.shape)
            if np.array_equal(rows, made) or not np.array_equal(value, rows):
                return port
            scaled[port.names[name]] = made
    if not scaled:
        return port
    dump = port.dump

    def read(name: str) -> np.ndarray:
        return scaled[name] if name in scaled else dump.read(name)

    told = TOLD.format(tap=tap, scale=ratio(*both(module, fed[0])))
    changed = Dump(dump.path, dump.shapes, read, dump.about)
    return replace(port, dump=changed, told=(*port.told, told))


def tap_of(module: Any) -> str:
    """Return the tap of a model's embedding."""
    table = module.get_input_embeddings()
    return next(unwrapped(path) for path, part in module.named_modules() if part is table)


def both(module: Any, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the table, and what the embedding makes of them, (1, L, E) each."""
    import torch

    table, ids = module.get_input_embeddings(), torch.tensor([list(tokens)])
    with torch.no_grad():
        return to_numpy(table.weight[ids]), to_numpy(table(ids))


def ratio(rows: np.ndarray, made: np.ndarray) -> float:
    wide, right = rows.astype(np.float64).ravel(), made.astype(np.float64).ravel()
    return float(wide @ right / (wide @ wide))
