"""The wide search itself: its measures, its tokens, and how much it may look at."""

from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.searching import wide as module
from lockstep.parity.explaining.searching.segments import Segments
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.wide import Wide, are_off, spread_out
from lockstep.parity.explaining.tensors import Tensors
from tests.parity.explaining.ports import explained, graph_of, ids, model_of, port
from tests.sampled import sampled

MODEL = "models/untied_float32"


def test_distances_by_hand():
    """The port is 2 a + b, where b is right; the second token is right already."""
    a, right = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 5.0]])
    few = SimpleNamespace(port=2 * a + right, ends=right)
    wide = Wide(few, [])  # pyright: ignore[reportArgumentType]
    raw, scaled, mixed, token = wide.measures(np.stack([right, a + right, 2 * a + 2 * right]))
    np.testing.assert_allclose(raw, np.sqrt([4 / 26, 1 / 27, 26 / 108]))
    np.testing.assert_allclose(
        scaled, np.sqrt([1 - 26 / 30, 1 - 28**2 / 27 / 30, 1 - 56**2 / 108 / 30]), atol=1e-8
    )
    np.testing.assert_allclose(mixed, [scaled[0], 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(token, np.sqrt([0, 0, 1 / 8]))


def test_huge_numbers_are_near_to_nothing():
    """By law: what is no part of the port is as far as can be, after any factor."""
    port = np.array([[1.0, 0.0, 0.0]])
    few = SimpleNamespace(port=port, ends=np.array([[0.0, 0.0, 1.0]]))
    wide = Wide(few, [])  # pyright: ignore[reportArgumentType]
    _, scaled, mixed, _ = wide.measures(np.array([[[0.0, 1e9, 0.0]], [[1e9, 0.0, 0.0]]]))
    assert scaled.tolist() == [1.0, 0.0] == mixed.tolist()


def test_tokens_are_spread_from_the_first_to_the_last_but_one():
    """By hand."""
    assert spread_out(np.arange(40)).tolist() == [0, 8, 15, 23, 30, 38]
    assert spread_out(np.arange(7)).tolist() == [0, 1, 2, 3, 4, 5]
    assert spread_out(np.array([3, 4])).tolist() == [3, 4]
    assert spread_out(np.array([], int)).tolist() == []


def test_the_work_is_told_by_the_tokens_wherever_their_axis_is(monkeypatch: pytest.MonkeyPatch):
    """By hand: the values of heads have it behind that of the heads."""
    graph, taps = graph_of(MODEL), port(MODEL)
    number = graph.taps["model.layers.0.self_attn.q_rope"]
    assert graph.shapes[number][1] != graph.shapes[number][2] == 20
    values = {graph.taps["model.embed_tokens"]: taps["model.embed_tokens"]}
    values[number] = np.zeros(graph.shapes[number], np.float32)
    model = model_of(MODEL)
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(number, values)
    monkeypatch.setattr(module, "WORK", 1e6)
    few = SimpleNamespace(trial=trial, piece=piece, tokens=[0, 7, 18])
    price = Segments(trial, piece, []).price
    assert Wide(few, []).most == pytest.approx(1e6 / (3 * price))  # pyright: ignore[reportArgumentType]


@sampled(1)
@pytest.mark.parametrize("name", [MODEL, "models/tied_bfloat16"])
@pytest.mark.parametrize(
    "bugs",
    [
        ["softmax-wrong-axis[over heads]", "rope-axis-mixup", "v-taken-from-k"],
        ["gqa-tile-vs-repeat", "norm-result-discarded"],
    ],
)
def test_bugs_beside_an_inverted_mask_are_named_from_layers(name, bugs):
    """By law: no token can be looked at before the others, but the last but one sees one key."""
    found = explained(name, port(name, ["mask-polarity-inverted", *bugs], level="layers"))
    wanted = {bug.partition("[")[0] for bug in bugs} | {"mask-polarity-inverted"}
    assert ids(found) == wanted and not found.unexplained


ROPES = ["rope-sign-flipped", "rope-applied-to-v", "rope-unpermute-gqa", "qk-norm-scope"]


@sampled(0)
def test_bugs_that_the_first_token_does_not_show_are_named_from_layers():
    """By law: it turns by no angle, so the others alone tell. No pair of them is near."""
    found = explained(MODEL, port(MODEL, ROPES, level="layers"))
    assert ids(found) == {*ROPES} and not found.unexplained


def test_tokens_that_are_right_are_not_looked_at():
    """By law: the first one of a rope that turns backwards."""
    taps = port(MODEL, ["rope-sign-flipped"], level="layers")
    graph, model = graph_of(MODEL), model_of(MODEL)
    values = {graph.taps[tap]: taps[tap] for tap in ("model.embed_tokens", "model.layers.0")}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    piece = graph.piece(graph.taps["model.layers.0"], values)
    assert are_off(trial, piece).tolist() == [False] + [True] * 19
    assert Wide.of(trial, piece, []).few.tokens.tolist() == [1, 4, 8, 11, 15, 18]
    right = Trial(graph, model.ops, np.dtype(np.float32), values | {
        piece.target: trial.centre(None).target(piece.target)
    }, Tensors(model.checkpoint))  # fmt: skip
    assert not are_off(right, piece).any()


class Digit(int):
    """A bug that is a number, and stands where that does."""

    rank = property(int)


def digits(*ends: int) -> list[Digit]:
    return [*map(Digit, range(*ends))]


class Line:
    """Errors of sets of digits, each of which leaves less; nothing is computed."""

    spans, tokens = (1,), (0,)

    def __init__(self, factor):
        self.factor = factor

    def values(self, some):
        return [np.full((1, 1), self.factor ** len(atoms)) for atoms in some]


@pytest.mark.parametrize(("factor", "parts"), [(0.5, 2), (0.95, 1)])
def test_a_search_that_comes_much_nearer_may_take_twice_its_work(factor, parts, monkeypatch):
    """By hand: a few steps of as many sets as there are digits, at each of some sets."""
    wide = Wide(Line(factor), digits(30))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Wide, "most", 40)
    monkeypatch.setattr(Wide, "enough", 0.0)
    monkeypatch.setattr(module, "TOGETHER", 10)
    monkeypatch.setattr(wide, "measures", lambda stack: [stack[:, 0, 0]] * 4)
    wide.nearest([frozenset()], 9)
    assert parts * 40 < wide.count <= parts * 40 + 10


def test_a_search_goes_on_from_where_the_one_before_ended(monkeypatch):
    """By hand: two steps take sets of two digits, one more those of three."""
    wide = Wide(Line(0.5), digits(4))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Wide, "most", 1000)
    monkeypatch.setattr(Wide, "enough", 0.0)
    monkeypatch.setattr(wide, "measures", lambda stack: [stack[:, 0, 0]] * 4)
    for steps, longest in ((2, 2), (1, 3)):
        wide.nearest([frozenset()], steps)
        assert max(map(len, wide.errors)) == longest


class Likeness(Line):
    """Of the digits 0, 1 and 2 the last brings nothing nearer alone, and 9 nearly does as all."""

    LEFT = MappingProxyType({(9,): 0.4, (0, 9): 0.2, (0, 1, 9): 0.05, (0, 1, 2): 0.0})

    def __init__(self):
        super().__init__(1.0)

    def values(self, some):
        return [np.full((1, 1), self.LEFT.get(tuple(sorted(atoms)), 1.0)) for atoms in some]


class Way(Line):
    """Of the digits 0, 1 and 2 each brings a little nearer; what a search begins with does more."""

    LEFT = MappingProxyType({(0,): 0.95, (0, 1): 0.6, (0, 1, 2): 0.0})

    def values(self, some):
        return [np.full((1, 1), self.left(tuple(sorted(atoms)))) for atoms in some]

    def left(self, digits):
        others = [digit for digit in digits if digit >= 50]
        return self.LEFT.get(digits, 0.9 - 0.003 * (others[0] - 50) if others else 1.0)


def test_what_a_search_begins_with_takes_no_work_from_bugs_alone(monkeypatch):
    """By hand: forty sets to begin with, and room for the sets that lie beside a dozen."""
    wide = Wide(Way(1.0), digits(50))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Wide, "most", 1000)
    monkeypatch.setattr(Wide, "enough", 0.0)
    monkeypatch.setattr(module, "BEAM", 3)
    monkeypatch.setattr(wide, "measures", lambda stack: [stack[:, 0, 0]] * 4)
    begun = [frozenset(), *(frozenset([digit]) for digit in digits(50, 90))]
    assert wide.nearest(begun, 6)[0] == frozenset([0, 1, 2])


@pytest.mark.parametrize(("fewest", "least"), [(0, 0.05), (3, 0.0)])
def test_another_bug_is_tried_in_the_place_of_each_of_the_nearest_sets(fewest, least, monkeypatch):
    """By hand: no set with a bug more, or less, leads from one to the other."""
    wide = Wide(Likeness(), digits(10))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Wide, "most", 1000)
    monkeypatch.setattr(Wide, "enough", 0.0)
    for name, value in (("BEAM", 1), ("FEWEST", fewest)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(wide, "measures", lambda stack: [stack[:, 0, 0]] * 4)
    found = wide.nearest([frozenset()], 9)
    assert wide.errors[found[0]] == (least,) * 4


def test_a_way_leads_on_from_what_leaves_less_than_three_tenths():
    """By hand: the nearest three, of which a bug more must leave less than nine tenths."""
    few = SimpleNamespace()
    wide = Wide(few, [])  # pyright: ignore[reportArgumentType]
    left = {"a": 0.2, "ab": 0.19, "abc": 0.05, "d": 0.29, "e": 0.31}
    wide.errors = {frozenset(name): (error,) for name, error in left.items()}  # pyright: ignore
    assert wide.leads() == [frozenset(name) for name in ("abc", "a", "ab")]
