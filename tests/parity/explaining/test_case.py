"""In which order the wrong pieces of a dump are searched. By hand."""

from types import SimpleNamespace

from lockstep.parity.explaining.case import Case
from lockstep.parity.graph.graph import Piece


def order(errors: dict[int, float], counts: dict[int, int], kinds: dict[int, str]) -> list[int]:
    case = SimpleNamespace(
        wrong=[Piece(target, ()) for target in errors],
        graph=SimpleNamespace(kind=lambda piece: (kinds[piece.target],)),
        judged={target: SimpleNamespace(own_error=error) for target, error in errors.items()},
        candidates=lambda piece: range(counts[piece.target]),
    )
    return [piece.target for piece in Case.by_ease(case)]  # pyright: ignore[reportArgumentType]


def test_pieces_of_few_candidates_come_first_and_of_like_ones_the_least_wrong():
    kinds = {1: "layer", 2: "layer", 3: "layer", 4: "norm"}
    counts = {1: 90, 2: 100, 3: 100, 4: 20}
    assert order({1: 0.9, 2: 0.2, 3: 0.5, 4: 2.0}, counts, kinds) == [4, 2, 3, 1]


def test_an_error_that_is_no_number_comes_last():
    kinds, counts = {1: "layer", 2: "layer"}, {1: 10, 2: 10}
    assert order({1: float("nan"), 2: 3.0}, counts, kinds) == [2, 1]
    assert order({1: float("inf"), 2: 3.0}, counts, kinds) == [2, 1]
