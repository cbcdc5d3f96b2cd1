"""Names that all differ from ours in one way. By hand."""

import pytest

from lockstep.parity.naming.wholesale import counted_from_1, over_heads, without_wrapper
from tests.parity.naming.test_recovery import layered

KNOWN = layered("mlp.down_proj", "self_attn.q_proj", count=3) | {"model.norm": (1, 7, 8)}


def shifted(*numbers: int, part: str = "self_attn.q_proj") -> dict[str, str]:
    return {name: name for name in (f"model.layers.{n}.{part}" for n in numbers)}


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
    names = shifted(1, 2, 3) | shifted(2, part="mlp.down_proj") | {"model.norm": "model.norm"}
    found = counted_from_1(names, KNOWN)
    assert found["model.layers.3.self_attn.q_proj"] == "model.layers.2.self_attn.q_proj"
    assert found["model.layers.2.mlp.down_proj"] == "model.layers.1.mlp.down_proj"
    assert "model.norm" not in found


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 2), (2, 3), (0, 1, 2, 3), (1, 2, 3, 4), ()])
def test_other_numbers_are_those_of_ours(numbers):
    assert counted_from_1(shifted(*numbers), KNOWN) == {}


def test_one_matrix_for_all_heads_is_no_probabilities():
    tap = "model.layers.0.self_attn.probs"
    known = {tap: (1, 4, 7, 7)}
    for shape in ((1, 7, 7), (7, 7), (1, 1, 7, 7)):
        assert over_heads({"p": tap}, {"p": shape}, known) == ["p"]
    for shape in ((1, 4, 7, 7), (4, 7, 7), (1, 7, 8), (7,)):
        assert over_heads({"p": tap}, {"p": shape}, known) == []
    assert over_heads({"p": tap}, {"p": (1, 7, 7)}, {tap: (1, 1, 7, 7)}) == []
