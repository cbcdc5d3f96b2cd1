"""In which order the wrong pieces of a dump are searched, and how deeply. By hand."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.case import DEAR, Case
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.price import BUDGET
from lockstep.parity.graph import Tensor, Value
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


@pytest.mark.parametrize(
    ("found", "patience", "deep"),
    [
        ([], 2, [1, 2, -3]),
        ([2], 2, [1, 2, 3, 1, -3]),
        ([3], 2, [1, 2, -3, 1, 2]),
        ([2], 1, [1, -2, 3, -1]),
        ([1], 1, [1, 2, -3]),
    ],
)
def test_after_searches_in_vain_like_pieces_are_not_searched_deeply(found, patience, deep):
    """What the first of three layers hides, the second may show; after that one more is searched,
    briefly (here with a minus), and no more time is spent.
    """
    searched: list[int] = []

    def explain(
        piece: Piece, known: Counter[int], *, deep: bool, brief: bool, effort: float
    ) -> bool:
        searched.extend([-piece.target if brief else piece.target] * deep)
        if deep and piece.target in found:
            known[piece.target] += 1
            return True
        case.open.append(piece)
        return False

    case = SimpleNamespace(
        by_ease=lambda: [Piece(target, ()) for target in (1, 2, 3)],
        graph=SimpleNamespace(kind=lambda piece: ("layer",)),
        explain=explain, patience=lambda piece: patience,
        work=lambda piece: BUDGET,
        tap=lambda piece: "", strange=lambda piece: False, open=[], trial=SimpleNamespace(count=0),
        explained=[], bugs=list,
    )  # fmt: skip
    Case.search(case, lambda tap: None)  # pyright: ignore[reportArgumentType]
    assert searched == deep


def test_what_was_searched_in_vain_leaves_less_work_for_others_until_something_is_known():
    """By hand: the third of four pieces, each of a kind of its own, is explained."""
    efforts: list[float] = []

    def explain(
        piece: Piece, known: Counter[int], *, deep: bool, brief: bool, effort: float
    ) -> bool:
        case.trial.count += DEAR
        efforts.append(effort)
        if piece.target == 3:
            known[3] += 1
        return piece.target == 3

    case = SimpleNamespace(
        by_ease=lambda: [Piece(target, ()) for target in (1, 2, 3, 4)],
        graph=SimpleNamespace(kind=lambda piece: (piece.target,)),
        explain=explain, patience=lambda piece: 1,
        work=lambda piece: BUDGET,
        tap=lambda piece: "", strange=lambda piece: False, open=[], trial=SimpleNamespace(count=0),
        explained=[], bugs=list,
    )  # fmt: skip
    Case.search(case, lambda tap: None)  # pyright: ignore[reportArgumentType]
    assert efforts == [1, 1 / 2, 1 / 3, 1]


def test_a_second_search_is_over_what_is_open_and_knows_what_was_found():
    """By hand: the second of three pieces is explained."""
    searched: list[tuple[int, list[str]]] = []

    def explain(piece: Piece, known: Counter[str], **how: Any) -> bool:
        searched.append((piece.target, [*known]))
        case.open.append(piece)
        return False

    pieces = [Piece(target, ()) for target in (1, 2, 3)]
    case = SimpleNamespace(
        by_ease=lambda: pieces, graph=SimpleNamespace(kind=lambda piece: ()),
        explain=explain, patience=lambda piece: 1,
        work=lambda piece: BUDGET, tap=lambda piece: "", strange=lambda piece: False,
        open=[pieces[0], pieces[2]], explained=[(pieces[1], [])], bugs=lambda: ["bug"],
        search_over=lambda piece: SimpleNamespace(
            atoms=[], piece=piece, cleared=None, explained_by=list
        ),
        trial=SimpleNamespace(count=0),
    )  # fmt: skip
    Case.search(case, lambda tap: None)  # pyright: ignore[reportArgumentType]
    assert searched == [(1, ["bug"]), (3, ["bug"])] and case.open == [pieces[0], pieces[2]]


@pytest.mark.parametrize(("taught", "effort"), [([], 1), ([frozenset()], 1 / 2)])
def test_where_a_like_piece_is_explained_half_of_the_work_is_done(taught: list[Any], effort: float):
    """By hand."""
    efforts: list[float] = []

    def search_over(piece: Piece, narrow: list[Any], *, brief: bool, effort: float) -> Any:
        efforts.append(effort)
        return SimpleNamespace(atoms=[], cleared=None, explanations=lambda *some, deep: [])

    case = SimpleNamespace(
        hypotheses=[], graph=None, search_over=search_over, open=[],
        taught=lambda piece: taught, elsewhere=lambda piece: [], shows_packing=False,
    )  # fmt: skip
    Case.explain(case, Piece(0, ()), Counter(), deep=True)  # pyright: ignore[reportArgumentType]
    assert efforts == [effort]


def test_a_bug_is_proven_by_a_like_piece_that_nothing_else_explains():
    """By hand: two explanations share a bug, another layer has one; of another kind is the last."""

    def sets(*some: str) -> list[Any]:
        return [SimpleNamespace(bugs=frozenset(names)) for names in some]

    layers, other = [Piece(number, ()) for number in range(3)], Piece(9, ())
    found = [sets("ab", "ac"), sets("d"), sets("e", "f"), sets("g")]
    case = SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: piece.target < len(layers)),
        explained=[*zip([*layers, other], found, strict=True)],
    )
    assert Case.proven(case, layers[0]) == {"a", "d"}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("weights", "work", "patience"), [(4, BUDGET, 2), (5, BUDGET, 1), (4, BUDGET - 1, 1)]
)
def test_small_pieces_get_a_second_try(weights, work, patience):
    """By hand: one of four tensors beside a value, one of five, and one that is dear."""
    inputs = [Value(0), *(Tensor(f"weight {number}") for number in range(weights))]
    graph = SimpleNamespace(calls=[SimpleNamespace(inputs=inputs)])
    case = SimpleNamespace(graph=graph, strange=lambda piece: False, work=lambda piece: work)
    assert Case.patience(case, Piece(0, (0,))) == patience  # pyright: ignore[reportArgumentType]


def test_of_pieces_of_other_weights_one_is_searched():
    case = SimpleNamespace(strange=lambda piece: True)
    assert Case.patience(case, Piece(0, (0,))) == 0  # pyright: ignore[reportArgumentType]


def test_all_single_bugs_that_explain_a_piece_are_tried_on_like_ones():
    """By hand: five bugs do so, and five sets of two, of which three are handed on."""

    def bug(number: int) -> Atom:
        return Atom(Hypothesis(None, f"{number}", "", 0, frozenset([0, 1])), frozenset([0]))

    sets = [frozenset([bug(one)]) for one in range(5)]
    sets += [frozenset([bug(one), bug(one + 1)]) for one in range(5, 15, 2)]
    other, piece = Piece(0, (0,)), Piece(1, (1,))
    case = SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: ()),
        hypotheses=[],
        calls=lambda piece: frozenset(piece.calls),
        explained=[(other, [Explanation(atoms, None) for atoms in reversed(sets)])],
    )
    found = Case.taught(case, piece)  # pyright: ignore[reportArgumentType]
    assert [len(atoms) for atoms in found] == [1] * 5 + [2] * 3
    assert all(atom.calls == {1} for atoms in found for atom in atoms)


def test_what_explains_a_piece_of_another_kind_is_tried_in_modules_of_the_same_names():
    """By hand: two norms of an attention, beside one in front of it, and a bug of the other kind
    alone; a single bug of another piece is known anyhow.
    """
    places = ["q_norm", "k_norm", "norm", "q_norm", "k_norm", "norm", "mask"]
    everywhere = Hypothesis(None, "norm", "", 0, frozenset(range(6)))
    masked = Hypothesis(None, "mask", "", 1, frozenset([6]))
    scaled = Hypothesis(None, "scale", "", 2, frozenset([2, 5]))
    two = frozenset([Atom(everywhere, frozenset([3, 4])), Atom(scaled, frozenset([5]))])
    kinds = {2: "full", 6: "sliding", 5: "norm"}
    case = SimpleNamespace(
        graph=SimpleNamespace(
            kind=lambda piece: kinds[piece.target],
            calls=[SimpleNamespace(place=place) for place in places],
        ),
        explained=[
            (Piece(6, (3, 4, 5, 6)), [Explanation(two | {Atom(masked, masked.calls)}, None)]),
            (Piece(5, (5,)), [Explanation(frozenset([Atom(scaled, frozenset([5]))]), None)]),
        ],
    )
    (found,) = Case.elsewhere(case, Piece(2, (0, 1, 2)))  # pyright: ignore[reportArgumentType]
    assert found == {Atom(everywhere, frozenset([0, 1])), Atom(scaled, frozenset([2]))}
    assert Case.elsewhere(case, Piece(6, (3, 4, 5, 6))) == []  # pyright: ignore[reportArgumentType]


def test_every_search_knows_what_like_pieces_prove():
    case = SimpleNamespace(
        hypotheses=[], trial=None, work=lambda piece: BUDGET,
        candidates=lambda piece: [], proven=lambda piece: {"it"},
    )  # fmt: skip
    assert Case.search_over(case, Piece(0, ())).proven == {"it"}  # pyright: ignore[reportArgumentType]
