"""A port that multiplies in half precision and keeps all else in float32, as torch.autocast does.

Its stream is stored as float32, but its noise is that of its products: those that a dump shows
alone say so, since they hold numbers of half precision, and are right only if they are made so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.rounded_when_stored import held
from lockstep.parity.explaining.other_weights import shown_alone
from lockstep.parity.faults.dtype import HALVES
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Call
from lockstep.parity.graph.graph import Piece
from lockstep.reference.precision import dtype_named

NEARER = 1 / 2  # of what half precision moves a value by
SAID = "stored as {wide}, but products are in {own}, as of torch.autocast: judged as {own}"


def half_products(case: Case) -> str | None:
    """Return the half precision that most products which a dump shows alone were made in.

    A head alone may be made so in a port of float32: then nothing else is as far off as it were.
    """
    if case.dtype in HALVES or "dtype" in case.sides.dump.about:
        return None
    pieces = case.graph.pieces(case.dumped)
    alone = shown_alone(pieces, case.graph)
    products = [one for one in pieces if one.target in alone and product(one, case) is not None]
    made = Counter(filter(None, (made_in(one, case) for one in products)))
    half, count = made.most_common(1)[0] if made else (None, 0)
    if half is None or 2 * count <= len(products):
        return None
    return None if any(too_near(one, half, case) for one in pieces if one not in products) else half


def too_near(piece: Piece, half: str, case: Case) -> bool:
    """Say whether a port is nearer to what is right than products in half precision allow."""
    calls = {call.number: in_half(call, half) for call in products_of(piece, case)}
    if not calls:
        return False
    moved = case.trial.look(piece, calls).effect(0, None)
    return case.trial.look(piece, {}).raw(0, None) < NEARER * moved


def products_of(piece: Piece, case: Case) -> Iterator[Call]:
    calls = map(case.graph.calls.__getitem__, piece.calls)
    return (call for call in calls if call.op == "linear")


def product(piece: Piece, case: Case) -> Call | None:
    """Return the product with a matrix that a piece is, None of a table."""
    return next(products_of(piece, case), None)


def made_in(piece: Piece, case: Case) -> str | None:
    """Return the half precision that a product was made in, None if that is not seen."""
    port, call = case.trial.port(piece.target), product(piece, case)
    halves = [half for half in HALVES if held(port, dtype_named(half)).all()]
    if call is None or not halves or not np.isfinite(port).all() or case.trial.judge(piece).passed:
        return None
    rewritten = ({call.number: in_half(call, half)} for half in halves)
    judged = (case.trial.judge(piece, calls, coarse=True).passed for calls in rewritten)
    return next((half for half, passed in zip(halves, judged, strict=True) if passed), None)


def in_half(call: Call, name: str) -> Call:
    """Return a product of what is rounded to a half precision, rounded to it."""
    half = rounded_through(name)
    rounded = call.with_changed(0, half).with_changed(1, lambda ops, w: half(ops, dense(ops, w)))
    if call.tensor(2):
        rounded = rounded.with_changed(2, half)
    return rounded.followed(half)
