"""A float32 port some of whose tensors were stored in half precision: the file alone rounded them.

Where a port goes on with what such a tensor holds, it computed in half precision there, and that
is no matter of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.conventions.rounded_when_stored import Half, sort_again
from lockstep.parity.explaining.conventions.stored import WIDE, store_as_computed, store_coarsely
from lockstep.parity.graph.graph import Piece
from lockstep.reference.checkpoint.errors import show
from lockstep.reference.precision import dtype_named

HALVES = {"float16", "bfloat16"}
STORED = (
    "{count} of the float32 port's tensors are stored as {kinds}, {first} first, and were rounded "
    "when stored: what was rounded off counts as noise"
)


def sort_some_stored(case: Case, progress: Progress) -> Iterator[str]:
    """Say so if some tensors of a float32 port were rounded when stored; judge all again."""
    trial, before = case.trial, len(case.wrong)
    stores = {} if trial.dtype != WIDE or trial.also else rounded_by_file(case)
    if not stores:
        return
    store_coarsely(trial, stores.get)
    sort_again(case, progress)
    if len(case.wrong) < before:
        yield said(case, stores)
    else:
        store_as_computed(trial)
        sort_again(case, progress)


def rounded_by_file(case: Case) -> dict[int, Half]:
    """Return how values are stored that are off, unless the port goes on with one that is."""
    kinds = {piece.target: kind_of(piece, case) for piece in case.wrong}
    stores = {one: Half(dtype_named(kind)) for one, kind in kinds.items() if kind in HALVES}
    gone_on = any(not stores.keys().isdisjoint(read_by(piece, case)) for piece in case.right)
    return {} if gone_on else stores


def kind_of(piece: Piece, case: Case) -> str:
    """Return the dtype that a piece's tensor has in its file."""
    return case.sides.dump.parts(case.tap(piece)).dtype.name


def read_by(piece: Piece, case: Case) -> set[int]:
    """Return the values that a piece is computed from, and those between."""
    return set().union(*map(case.graph.sources, piece.calls))


def said(case: Case, stores: Mapping[int, Half]) -> str:
    names = [case.tap(case.graph.piece(one, case.dumped)) for one in sorted(stores)]
    kinds = sorted({store.dtype.name for store in stores.values()})
    return STORED.format(count=len(names), kinds=" and ".join(kinds), first=show(names[0], 48))
