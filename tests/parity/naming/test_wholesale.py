"""Names that all differ from ours in one way. By hand."""

import pytest

from lockstep.parity.naming.wholesale import (
    WRAPPERS,
    counted_from_1,
    from_0,
    over_heads,
    without_wrapper,
)
from tests.parity.naming.test_recovery import layered

KNOWN = layered("mlp.down_proj", "self_attn.q_proj", count=3) | {"model.norm": (1, 7, 8)}


def layers(*numbers: int, part: str = "self_attn.q_proj") -> list[str]:
    return [f"model.layers.{n}.{part}" for n in numbers]


@pytest.mark.parametrize("wrapper", ["net.", "my.lm.", "runner/port/"])
def test_a_wrapper_that_nobody_knows_is_taken_off(wrapper):
    names = ["model.norm", "model.layers.0.self_attn.q_proj", "logits", "own"]
    wrapped = {f"{wrapper}{name}": name for name in names}
    assert without_wrapper(wrapped) == wrapped
    steps = {f"step.1/{wrapper}{name}": name for name in names}
    assert without_wrapper(steps) == steps


@pytest.mark.parametrize(
    "names",
    [
        ["net.model.norm", "logits"],  # not before all
        ["draft.model.norm", "target.model.norm"],  # two models
        ["model.norm", "model.layers.0"],
        ["net.a", "net.b", "net.model.norm"],  # most are no taps
        ["net.", ""],
        [],
    ],
)
def test_what_is_no_wrapper_of_all_stays(names):
    assert without_wrapper(names) == {}


def test_layers_of_taps_from_1_are_told_by_the_one_behind_the_last():
    names = [*layers(1, 2, 3), *layers(2, part="mlp.down_proj"), "model.norm"]
    assert counted_from_1(names, KNOWN)
    assert [*map(from_0, names)] == [
        *layers(0, 1, 2), *layers(1, part="mlp.down_proj"), "model.norm"
    ]  # fmt: skip


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 2), (2, 3), (0, 1, 2, 3), (1, 2, 3, 4), ()])
def test_other_numbers_are_those_of_ours(numbers):
    assert not counted_from_1(layers(*numbers), KNOWN)


def test_one_matrix_for_all_heads_is_no_probabilities():
    tap = "model.layers.0.self_attn.probs"
    known = {tap: (1, 4, 7, 7)}
    for shape in ((1, 7, 7), (7, 7)):
        assert over_heads({"p": tap}, {"p": shape}, known) == ["p"]
    for shape in ((1, 4, 7, 7), (4, 7, 7), (1, 1, 7, 7), (1, 7, 8), (7,)):
        assert over_heads({"p": tap}, {"p": shape}, known) == []
    assert over_heads({"p": tap}, {"p": (1, 7, 7)}, {tap: (1, 1, 7, 7)}) == []


def test_one_heads_own_scores_are_no_average():
    """A port that forgot the other heads has a wrong shape, which is told."""
    tap = "model.layers.0.self_attn.scores"
    for shape in ((1, 7, 7), (1, 1, 7, 7)):
        assert over_heads({"s": tap}, {"s": shape}, {tap: (1, 4, 7, 7)}) == []


def test_a_wrapper_is_sought_in_what_all_names_begin_with():
    """Not in the whole of a name, which may have hundreds of parts."""
    beyond = {f"{'a.' * WRAPPERS}model.norm": "model.norm"}
    assert without_wrapper(beyond) == beyond
    assert without_wrapper([f"{'a.' * WRAPPERS}b.model.norm"]) == {}
