"""Whether an error is in one head of attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Call, Tensor
from lockstep.parity.graph.graph import Piece

LEFT = 0.01  # of the error's power that may be beside one head
SAID = "one head: head {head} of {heads}, counted from 0, accounts for all of it"
MOSTLY = (
    "mostly one head: head {head} of {heads}, counted from 0, has all but {left:.1%} of the "
    "error's power; others are wrong too"
)


def one_head(trial: Trial, piece: Piece, error: np.ndarray, still: float = np.inf) -> str | None:
    """Say which head makes all of an error (tokens, numbers), if one of several does, or most.

    It makes all of it if what is beside it is no larger than what is `still` right. Behind the
    output projection a head spans the columns that read it.
    """
    width, power, left = error.shape[1], np.sum(error**2), []
    for span in heads_of(trial, piece):
        if len(span) != width:  # several rows of a batch stand side by side
            return None
        if 2 * span.shape[1] > width:
            return None  # one head could make nearly any error
        left.append(np.sum((error - error @ span @ span.T) ** 2) / power)
    alone = [head for head, rest in enumerate(left) if rest < LEFT]
    several = len(left) > 1 and len(alone) == 1
    if not several:
        return None
    rest = left[alone[0]]
    said = SAID if rest * power <= still**2 else MOSTLY
    return said.format(head=alone[0], heads=len(left), left=rest)


def heads_of(trial: Trial, piece: Piece) -> Iterator[np.ndarray]:
    """Yield an orthonormal basis of what each head can reach of a token's numbers."""
    graph, target = trial.graph, trial.graph.calls[piece.target]
    if len(shape := graph.shapes[piece.target]) == 4 and graph.token_axes[piece.target][0] == 2:
        yield from side_by_side(shape[1], shape[3])
    merge = target if target.op == "merge_heads" else merged(target, trial)
    if merge is None:
        return
    _, heads, _, width = graph.input_shape(merge, 0)
    if merge is target:
        yield from side_by_side(heads, width)
    elif (matrix := matrix_of(target, trial)).shape == (shape[-1], heads * width):
        yield from (np.linalg.qr(one)[0] for one in np.split(matrix, heads, axis=1))


def merged(call: Call, trial: Trial) -> Call | None:
    """Return the merge of heads that a projection reads."""
    source = trial.graph.source(call, 0) if call.op == "linear" else call
    return source if source.op == "merge_heads" else None


def matrix_of(call: Call, trial: Trial) -> np.ndarray:
    weight = call.inputs[1]
    assert isinstance(weight, Tensor)  # behind heads no table is applied
    return dense(trial.ops, trial.read(weight)).astype(np.float64)


def side_by_side(heads: int, width: int) -> Iterator[np.ndarray]:
    """Yield the bases of heads whose numbers stand one head behind the other."""
    yield from (np.eye(heads * width, width, -head * width) for head in range(heads))
