"""Whether a dump seems to be of another model than the one that it is compared with."""

from collections.abc import Callable, Mapping

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.said.error_shape import shape_of_error
from lockstep.parity.explaining.said.other_rows import NO_ROW, lookup
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.graph.graph import Piece
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import CACHED, is_tap

Shape = tuple[int, ...]
BY_LENGTH = (".scores", ".probs")  # whose last axis is no width


def other_model(sides: Joined, wanted: Mapping[str, Shape], model: str) -> list[str]:
    """Return a doubt if most taps that a dump is found to have are none of the model's, or too
    wide; `wanted` has those of the model with their shapes.

    A bug spoils some shapes; what fits in fewer than half of all is another checkpoint's. The
    search for bugs would take long, and find none that are true. Where nothing fits there is
    nothing to search.
    """

    def fits(tap: str, shape: Shape) -> bool:
        """Say whether a model has the tap in a shape that moves lead to, or in its width."""
        if tap not in sides.parts:
            return tap.endswith(CACHED)
        moved = tap.endswith(BY_LENGTH) or sides.fits(tap, wanted[tap], 0)
        return moved or holds_width(shape, wanted[tap])

    return doubt_if_most_fail(sides, fits, model)


def holds_width(shape: Shape, wanted: Shape) -> bool:
    """Say whether an axis is as long as the last one that is wanted, or several times as long."""
    return any(size and size % wanted[-1] == 0 for size in shape)


def doubt_if_most_fail(
    side: Alignment, fits: Callable[[str, Shape], bool], model: str
) -> list[str]:
    """Return the doubt if more than half of a side's taps do not fit, but not all of them."""
    found = {tap: side.dump.shapes[name] for tap, name in side.names.items() if is_tap(tap)}
    wrong = [tap for tap, shape in found.items() if not fits(tap, shape)]
    if not len(found) < 2 * len(wrong) < 2 * len(found):
        return []
    first = f"the first is {side.names[wrong[0]]} {[*found[wrong[0]]]}"
    return [
        f"{len(wrong)} of {len(found)} taps of the dump are none of {model}, or of another width, "
        f"{first}: is it the checkpoint that was ported?"
    ]


def other_table(case: Case) -> list[str]:
    """Return a doubt if no embedding of a dump has rows of the model's table, or of it spoilt."""
    looked_up = [one for one in case.graph.pieces(case.dumped) if lookup(case.trial, one)]
    if not looked_up or not all(is_of_other_table(case, piece) for piece in looked_up):
        return []
    model = case.model.checkpoint.path.name
    return [
        f"the embeddings of the dump are no rows of {model}'s: is it the checkpoint that was "
        "ported?"
    ]


def is_of_other_table(case: Case, piece: Piece) -> bool:
    """Say whether an embedding has no row of its table, nor one that a bug makes of it."""
    if shape_of_error(case.trial, piece) != NO_ROW:
        return False
    here = frozenset(piece.calls)
    bugs = [Atom(one, one.calls & here) for one in case.hypotheses if one.calls & here]
    search = Search(case.trial, piece, bugs)
    return not any(search.explains(frozenset({bug}), patient=True) for bug in bugs)
