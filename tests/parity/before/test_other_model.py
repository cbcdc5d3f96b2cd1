"""A dump of another checkpoint is doubted before it is searched for bugs. By hand, and by law."""

from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.parity.before.other_model import other_model
from lockstep.parity.naming.plan import known_taps
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = ("gemma4/sparse", "models/untied_float32", "gpt2/original", "qwen3_moe/fused")


@pytest.fixture(scope="module")
def checkpoints():
    return {name: open_checkpoint(WITNESSES / name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_own_taps_are_not_doubted(name, checkpoints):
    assert other_model(known_taps(checkpoints[name], length=7, batch=2), checkpoints[name]) == []


@pytest.mark.parametrize("pair", [*pairwise(MODELS[:3])])
def test_those_of_another_are(pair, checkpoints):
    dumped, ported = (checkpoints[name] for name in pair)
    assert other_model(known_taps(dumped, length=7), ported)
    assert other_model(known_taps(ported, length=7), dumped)


def test_a_bug_that_spoils_shapes_is_no_other_model(checkpoints):
    """Half of the heads, everywhere: all that is made of them is too narrow, the rest fits."""
    shapes = known_taps(checkpoints["models/untied_float32"], length=7)
    narrow = {name: (*shape[:-1], shape[-1] // 2 + 1) if "self_attn" in name else shape
              for name, shape in shapes.items()}  # fmt: skip
    assert other_model(narrow, checkpoints["models/untied_float32"]) == []


def test_the_doubt_says_how_many_and_which_first(checkpoints):
    """By hand: of three taps two have no multiple of the width that they should have."""
    shapes = {"logits": (1, 3, 7), "model.norm": (1, 3, 5), "model.layers.0": (1, 3, 96)}
    (line,) = other_model(shapes, checkpoints["models/untied_float32"])
    assert line.startswith("2 of 3 taps of the dump are none of untied_float32, or of another")
    assert "the first is logits [1, 3, 7]" in line
    del shapes["model.layers.0"]
    assert other_model(shapes, checkpoints["models/untied_float32"]) == []  # it is refused
