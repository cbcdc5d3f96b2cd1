"""Whether a port computes with other weights than the checkpoint's: most of its matrices are wrong.

A dumped value that is one product of a dumped one shows its matrix alone. Where most of these are
wrong, and no bug that is known makes them so, another checkpoint was ported, or one that was
trained on or quantised otherwise. Then no set of bugs explains what lies behind such a matrix, and
the search for one in each layer would take long. But a table and a head may have a bug that nobody
knows: so more of what holds a matrix has to be wrong than is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lockstep.parity.faults.adapter_layers import FACTORS
from lockstep.parity.graph import Call, Graph, Tensor
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

PRODUCTS = ("linear", "embedding")
HOLDERS = (*PRODUCTS, "experts", "geglu_experts")
FEWEST = 2  # matrices, which may be an embedding and a head: a dump of layers shows no others
SAID = (
    "{wrong} of the {all} matrices that the dump shows alone are not {model}'s, nor what a known "
    "bug makes of them: {which} once that was seen, one layer of each kind was searched for "
    "several bugs, not all"
)
OF_THE_BASE = "was another checkpoint ported, or one that was trained on or quantised otherwise?"
OF_THE_ADAPTER = (
    "each of them has an adapter: was another one applied, or in another way, or to another "
    "checkpoint?"
)


def other_weights(case: Case) -> list[str]:
    """Return a doubt if most matrices of a port are none of the checkpoint's."""
    if not case.of_other_weights():
        return []
    wrong = [piece for piece in case.open if piece.target in case.matrices]
    adapted = all(is_adapted(piece, case.graph) for piece in wrong)
    which = OF_THE_ADAPTER if adapted else OF_THE_BASE
    model = case.model.checkpoint.path.name
    return [SAID.format(wrong=len(wrong), all=len(case.matrices), model=model, which=which)]


def is_adapted(piece: Piece, graph: Graph) -> bool:
    """Say whether an adapter takes part in a piece."""
    return any(graph.calls[number].op in FACTORS for number in piece.calls)


def most(
    matrices: Collection[int],
    holders: Collection[int],
    wrong: Sequence[Piece],
    fits: Sequence[Piece],
) -> bool:
    """Say whether most matrices that show alone are wrong, and most of what holds any."""
    alone, more = among(matrices, wrong), among(holders, wrong) > among(holders, fits)
    return alone >= FEWEST and 2 * alone > len(matrices) and more


def among(targets: Collection[int], pieces: Iterable[Piece]) -> int:
    return sum(piece.target in targets for piece in pieces)


def shown_alone(pieces: Iterable[Piece], graph: Graph) -> frozenset[int]:
    """Return the targets of the pieces that show one matrix alone."""
    return frozenset(piece.target for piece in pieces if is_one_matrix(piece, graph))


def holding(pieces: Iterable[Piece], graph: Graph) -> frozenset[int]:
    """Return the targets of the pieces that hold a matrix, beside what else they hold."""
    return frozenset(
        piece.target
        for piece in pieces
        if any(call.op in HOLDERS for call in weighted(piece, graph))
    )


def is_one_matrix(piece: Piece, graph: Graph) -> bool:
    """Say whether a piece is of one module, whose only weights are a matrix and its bias."""
    places = {graph.calls[number].place for number in piece.calls}
    made = [call.op for call in weighted(piece, graph)]
    return len(places) == len(made) == 1 and made[0] in PRODUCTS


def has_weights(piece: Piece, graph: Graph) -> bool:
    return any(weighted(piece, graph))


def weighted(piece: Piece, graph: Graph) -> Iterator[Call]:
    """Yield the calls of a piece that take tensors of the checkpoint."""
    for call in map(graph.calls.__getitem__, piece.calls):
        if any(isinstance(ref, Tensor) for ref in call.inputs):
            yield call
