"""Which bugs may explain a piece alone, as far as its first tokens say: these take less to compute.

A shallow search names one bug or nothing, so what leaves the first tokens unexplained is not looked
at any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.parity.explaining.searching.atom_sets import Atoms, acausal
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.look import over
from lockstep.parity.explaining.searching.settling import Settling

EARLY = 8  # tokens that are looked at before the others
FEWER = 4  # times as many tokens in a piece, for that to be less work


def speaks(search: Settling) -> bool:
    """Say whether the first tokens are few of all, and tell something of the others.

    They do not behind a router, which may have turned, where all tokens are the same, or where the
    port has what is no number.
    """
    trial, target = search.trial, search.piece.target
    total = trial.graph.shapes[target][trial.graph.token_axes[target][0]]
    known = trial.finite(target) and target not in trial.unseen and not trial.blind(target)
    return known and not search.routed and total >= FEWER * EARLY


def may_be_alone(search: Settling, atoms: Sequence[Atom]) -> list[Atom]:
    """Return the bugs of which each may explain the piece alone.

    One that lets a token see later ones has to be looked at whole.
    """
    sets = {atom: search.alone(atom) for atom in atoms}
    search.look_at((some for some in sets.values() if not acausal(some)), EARLY)
    return [atom for atom, some in sets.items() if acausal(some) or begins(search, some)]


def begins(search: Settling, atoms: Atoms) -> bool:
    """Say whether a set leaves no more of the first tokens than it may leave of all."""
    first, whole = search.look(atoms, EARLY), search.look(frozenset(), None)
    if first is None or whole is None:
        return False
    return over(first.port.sum(), whole.size.sum(), whole.noise) <= search.may_leave(atoms)
