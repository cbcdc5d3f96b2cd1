"""Tokens that an engine packed to the other side of a step than a replay does.

Some pack what they multiply to 8 bits. Where the dump lacks what was packed, rounding decides on
which side of a step a value next to it lies. One code more or less moves a token by less than all
the packing of it does, which is how far such a token may be off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.routing.coarse import by_token, turned
from lockstep.parity.explaining.searching.atom_sets import Atoms, widest
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, rewritten
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import Judgement, judge

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

PACKINGS = ("activations-in-8-bits", "activations-by-token")
TURNED = 0.25  # of the tokens, at most, that lie on the other side of a step
LEFT_OUT = "{count} token{s} of {tap} at a step of 8 bits: either side is right, and proves nothing"
Known = frozenset[Hypothesis]


def settle_codes(case: Case) -> Iterator[str]:
    """Explain open pieces by conventions alone, but for a few tokens at a step; say which."""
    still_open = []
    for piece in case.open:
        found = next(by_conventions(case, piece), None)
        if found is None:
            still_open.append(piece)
            continue
        explanation, count = found
        case.explained.append((piece, [explanation]))
        if count:
            yield LEFT_OUT.format(count=count, tap=case.tap(piece), s="s" * (count > 1))
    case.open = still_open


def by_conventions(case: Case, piece: Piece) -> Iterator[tuple[Explanation, int]]:
    """Yield what explains a piece of the conventions seen elsewhere, and how many tokens not."""
    search = Search(case.trial, piece, case.candidates(piece))
    for known in seen(case):
        atoms = widest(atom for atom in search.atoms if atom.hypothesis in known)
        if not (atoms and any(atom.hypothesis.id in PACKINGS for atom in atoms[0])):
            continue
        judged, count = judge_surely(case, piece, atoms[0])
        if judged is not None and judged.passed:
            yield Explanation(atoms[0], judged), count


def seen(case: Case) -> list[Known]:
    """Return the sets of conventions that explain other pieces, and all of them together."""
    found: dict[Known, None] = {}
    for _, explanations in case.explained:
        for one in explanations:
            known = one.bugs
            if all(one.fault.convention for one in known):
                found[known] = None
    every = frozenset().union(*found)
    return [*found, every] if every else []


@np.errstate(all="ignore")  # a broken port may hold anything
def judge_surely(case: Case, piece: Piece, atoms: Atoms) -> tuple[Judgement | None, int]:
    """Judge a piece on the tokens that no step can have turned, and count the others.

    None if the others are too many. None may be left out: that float32 turns a token as the port
    did is seen here alone, for the search looks at float64.
    """
    trial, target = case.trial, piece.target
    calls = rewritten(atoms, case.graph)
    packing = [atom for atom in atoms if atom.hypothesis.id not in PACKINGS]
    without = rewritten(packing, case.graph) if packing else {}
    if calls is None or without is None:
        return None, 0
    centre, port = trial.centre(None).target(target, calls), trial.port(target)
    plain = trial.centre(None).target(target, without)
    spread = [way.target(target, calls) for way in trial.ways(None)]
    if port.shape != centre.shape:
        return None, 0
    own = port.astype(np.float64) - centre
    axis = case.graph.token_axes[target][0]
    other_side = turned(own, [way - centre for way in spread], axis)
    other_side &= by_token(own, axis) <= by_token(plain - centre, axis)
    if other_side.mean() > TURNED:
        return None, 0
    sure = [trial.sure(value, piece, other_side) for value in (port, centre, *spread)]
    return judge(sure[0], sure[1], sure[2:], trial.dtype), int(other_side.sum())
