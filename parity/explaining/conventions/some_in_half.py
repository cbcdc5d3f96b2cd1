"""A float32 port some of whose tensors were stored in half precision: the file alone rounded them.

Where a port goes on with what such a tensor holds, or adds up what such tensors hold to the bit,
it computed in half precision there, and that is no matter of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lockstep.parity.dumps.dtype import stored_and_shown
from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.conventions.port_dtype import HALVES
from lockstep.parity.explaining.conventions.rounded_when_stored import (
    OWN_SUMS,
    Half,
    own_sums,
    sort_again,
)
from lockstep.parity.explaining.conventions.stored import WIDE, store_as_computed, store_coarsely
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Call
from lockstep.parity.graph.graph import Piece
from lockstep.reference.checkpoint.errors import show
from lockstep.reference.precision import dtype_named

MOST = 1 / 2  # of all values, that show one
STORED = (
    "{count} of the float32 port's tensors hold {kinds}, {first} first: what was rounded off when "
    "they were stored counts as noise"
)


def sort_some_stored(case: Case, progress: Progress) -> Iterator[str]:
    """Say so if some tensors of a float32 port were rounded when stored; judge all again."""
    trial = case.trial
    stores = {} if trial.dtype != WIDE or trial.also else rounded_by_file(case)
    if not stores:
        return
    off = made_of(stores, case.wrong, case)
    store_coarsely(trial, stores.get)
    sort_again(case, progress)
    if not off.isdisjoint(piece.target for piece in case.right):
        yield said(case, stores)
    else:
        store_as_computed(trial)
        sort_again(case, progress)


def rounded_by_file(case: Case) -> dict[int, Half]:
    """Return how values are stored that are off, if what is made of one is off too, and the port
    goes on with none. What nothing is made of, as logits, may be in half precision itself; what a
    cache holds it may round.
    """
    caches = {case.sides.names[tap] for tap in case.sides.caches}
    own = [piece for piece in case.wrong if case.tap(piece) not in caches]
    kinds = {piece.target: kind_of(piece, case) for piece in own}
    if not HALVES & {*kinds.values()}:
        kinds = shown_by_values(own, case)
    stores = {one: Half(dtype_named(kind)) for one, kind in kinds.items() if kind in HALVES}
    gone_on, off = (made_of(stores, pieces, case) for pieces in (case.right, case.wrong))
    return {} if gone_on or not off or adds_up(case, stores) else stores


def made_of(values: Mapping[int, Half], pieces: Sequence[Piece], case: Case) -> set[int]:
    """Return which pieces are computed from some values, by their targets."""
    return {piece.target for piece in pieces if not values.keys().isdisjoint(read_by(piece, case))}


def adds_up(case: Case, stores: Mapping[int, Half]) -> bool:
    """Say whether sums have the bits of half precision that those of the dumped values have."""
    for dtype in {store.dtype for store in stores.values()}:
        sums = [one for one in case.wrong if one.target in stores]
        half = Trial(case.graph, case.trial.ops, dtype, case.dumped, case.read)
        same = own_sums(half, sums)
        if same is not None and same >= OWN_SUMS:
            return True
    return False


def kind_of(piece: Piece, case: Case) -> str:
    """Return the dtype that a piece's tensor has in its file."""
    return case.sides.dump.parts(case.tap(piece)).dtype.name


def shown_by_values(off: Sequence[Piece], case: Case) -> dict[int, str]:
    """Return what values that are off show, where the file's dtype says nothing: if most of all do
    that were widened from half precision, else of those that do in every layer.
    """
    shown = {piece.target: shown_by(piece, case) for piece in off}
    most = MOST * (len(case.right) + len(case.wrong))
    halves = [piece for piece in off if shown[piece.target] in HALVES]
    return shown if len(halves) > most else in_every_layer(halves, shown, case)


def in_every_layer(halves: Sequence[Piece], shown: Mapping[int, str], case: Case) -> dict[int, str]:
    """Return the kinds of values of which all show it, and of each some wrong value is made.

    Within layers: what a table of half precision gives is so by itself. And not of the stream: who
    keeps that so rounds between those values too, and what is made of one is off as well.
    """
    kind = case.graph.kind
    whole, half = (Counter(map(kind, some)) for some in ([*case.right, *case.wrong], halves))
    taken = set().union(*(read_by(piece, case) for piece in case.wrong))
    return {
        one.target: shown[one.target] for one in halves
        if half[kind(one)] == whole[kind(one)] and one.target in taken
        and is_within(case.graph.calls[one.target])
    }  # fmt: skip


def is_within(call: Call) -> bool:
    """Say whether a value is made within a layer: no sum, and no layer's own result."""
    return call.layer is not None and bool(call.place) and call.op != "add"


def shown_by(piece: Piece, case: Case) -> str:
    return stored_and_shown(case.sides.dump.parts(case.tap(piece)))[1]


def read_by(piece: Piece, case: Case) -> set[int]:
    """Return the values that a piece is computed from, and those between."""
    return set().union(*map(case.graph.sources, piece.calls))


def said(case: Case, stores: Mapping[int, Half]) -> str:
    names = [case.tap(case.graph.piece(one, case.dumped)) for one in sorted(stores)]
    kinds = sorted({store.dtype.name for store in stores.values()})
    return STORED.format(count=len(names), kinds=" and ".join(kinds), first=show(names[0], 48))
