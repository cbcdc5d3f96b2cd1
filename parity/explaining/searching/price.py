"""Estimate what it takes to compute a piece, in products of two numbers."""

from __future__ import annotations

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.call import Tensor
from lockstep.parity.graph.graph import Piece

BUDGET = 8000  # computations of a piece, until it is left unexplained
WORK = 1.6e11  # products, of all of them: of a large piece fewer are made
FEWEST = 50  # but no fewer, however large it is
ROUTED = 10.0  # times as many that a state costs behind a router


def price_of_token(trial: Trial, piece: Piece) -> float:
    """Estimate the products that one token of a piece takes: those with matrices."""
    graph = trial.graph
    products = sum(
        graph.shapes[number][-1] * graph.shapes[source][-1]
        for number in piece.calls
        if any(isinstance(ref, Tensor) for ref in graph.calls[number].inputs)
        for source in graph.sources(number)
    )
    return products * (ROUTED if trial.routers_of(piece) else 1.0)


def price(trial: Trial, piece: Piece) -> float:
    """Estimate the products that all tokens of a piece take."""
    axis = trial.graph.token_axes[piece.target][0]
    return price_of_token(trial, piece) * trial.graph.shapes[piece.target][axis]


def most_computations(trial: Trial, piece: Piece) -> int:
    """Return how often a piece may be computed: less often, the more work it is."""
    return max(FEWEST, round(min(BUDGET, WORK / max(price(trial, piece), 1.0))))
