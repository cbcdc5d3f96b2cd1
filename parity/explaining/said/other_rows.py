"""Which rows of its table an embedding has, where they are not those of the prompt's ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Constant, Tensor
from lockstep.parity.graph.graph import Piece

ALIKE = 0.9  # the cosine of rows that are the same but for a scale, or for packing in 3 bits
BLOCK = 4096  # rows of a table that are in memory at once
MOST = 16  # wrong tokens whose rows are looked for
NO_ROW = "like no row of its table: is it of this checkpoint?"
OTHER_ROW = "other rows of its table: token {token} has that of {found}, but should have {said}'s"
MORE = "; {count} more differ"


@np.errstate(all="ignore")
def other_rows(trial: Trial, piece: Piece) -> str | None:
    """Return which rows an embedding has instead of its own, or that it has none of the table.

    None if it is no embedding of one prompt, or has its rows, or a few that are none. A row of
    noughts is right where its own is one.
    """
    looked_up = lookup(trial, piece)
    if looked_up is None:
        return None
    ids, table = looked_up
    port = directions(trial.port(piece.target).reshape(len(ids), -1))
    own = directions(rows_of(trial, table, ids))
    unlike = ~(np.sum(port * own, axis=1) > ALIKE) & (port != own).any(axis=1)
    wrong = np.flatnonzero(unlike).tolist()
    found = nearest(port[wrong[:MOST]], blocks(trial, table))
    known = [(token, row) for token, row in zip(wrong, found, strict=False) if row is not None]
    if not known:
        return NO_ROW if len(wrong) == len(ids) else None
    token, row = known[0]
    said = OTHER_ROW.format(token=token, found=row, said=ids[token])
    return said + MORE.format(count=len(wrong) - 1) * (len(wrong) > 1)


def lookup(trial: Trial, piece: Piece) -> tuple[list[int], str] | None:
    """Return the ids that a piece looks up and the name of its table, if it does no more to the
    rows than scale them.
    """
    calls = [trial.graph.calls[number] for number in piece.calls]
    looked_up = [call for call in calls if call.op == "embedding"]
    if len(looked_up) != 1 or {call.op for call in calls} - {"embedding", "scale"}:
        return None
    ids, table = looked_up[0].inputs[:2]
    if not isinstance(ids, Constant) or not isinstance(table, Tensor) or len(ids.value) != 1:
        return None
    numbers = [int(one) for one in ids.value[0]]
    return numbers if table.rows is None else [table.rows[one] for one in numbers], table.name


def rows_of(trial: Trial, table: str, ids: list[int]) -> np.ndarray:
    """Return rows (N, E) of a table."""
    stored = trial.read(Tensor(table, rows=tuple(ids)))
    return trial.ops.embedding(np.arange(len(ids))[None], stored, dtype=np.dtype("float32"))[0]


def blocks(trial: Trial, table: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows of a table, many at a time, with the number of the first."""
    count = trial.graph.stored[table].shape[0]
    for first in range(0, count, BLOCK):
        yield first, rows_of(trial, table, [*range(first, min(first + BLOCK, count))])


def nearest(rows: np.ndarray, blocks: Iterator[tuple[int, np.ndarray]]) -> list[int | None]:
    """Return for each of some directions the row of a table that has it, None if none has."""
    best = np.full(len(rows), ALIKE)
    found: list[int | None] = [None] * len(rows)
    for first, block in blocks if len(rows) else ():
        alike = rows @ directions(block).T
        for number, (row, most) in enumerate(zip(alike.argmax(1), alike.max(1), strict=True)):
            if most > best[number]:
                best[number], found[number] = most, first + int(row)
    return found


def directions(rows: np.ndarray) -> np.ndarray:
    """Return rows at length 1, as float32 at least; a row of noughts stays one."""
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    size = np.sqrt(np.einsum("ne,ne->n", rows, rows))[:, None]
    return rows / np.where(size == 0, 1, size)
