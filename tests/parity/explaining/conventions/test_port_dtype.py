"""What a port computed in is told by how all is stored that is no stream. By law."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.conventions.port_dtype import WIDE_STREAM, is_stream
from lockstep.parity.explaining.conventions.said_float32 import SAID
from tests.parity.explaining.ports import dumped, explained, ids, model_of, port

NAME = "models/untied_float32"
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def with_wide_stream(half, level, bugs=()):
    """Return a port's taps with sums in float32, and all else rounded to a half precision."""
    taps = port(NAME, bugs, level=level)
    return {tap: one if is_stream(tap) else one.astype(HALVES[half]) for tap, one in taps.items()}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("bug", ["final-norm-missing", None])
def test_a_stream_in_float32_says_nothing_of_what_is_computed_in(bug, half):
    found = explained(NAME, with_wide_stream(half, "layers", [bug] if bug else []))
    assert ids(found) == ({bug} if bug else set()) and found.dtype == half
    assert WIDE_STREAM.format(half=half) in found.conventions


def test_one_other_value_in_float32_is_enough_for_a_float32_port():
    taps = with_wide_stream("bfloat16", "layers") | {"model.norm": port(NAME)["model.norm"]}
    found = explained(NAME, taps)
    assert (found.verdict, found.dtype) == ("clean", "float32")


@pytest.mark.parametrize(
    ("tap", "is_one"),
    [("model.layers.3", True), ("step.2/transformer.h.0", True), ("logits", True),
     ("model.layers.3.residual", True), ("model.embed_tokens", True), ("model.norm", False),
     ("model.layers.3.mlp.down_proj", False)],
)  # fmt: skip
def test_what_is_a_stream_by_hand(tap, is_one):
    assert is_stream(tap) == is_one


@pytest.mark.parametrize("level", ["modules", "layers", "logits"])
@pytest.mark.parametrize("bug", ["attn-scale-missing", None])
def test_a_port_in_bfloat16_that_was_stored_in_float16(bug, level):
    """NumPy has no bfloat16, and an .npz none of its files."""
    taps = port(NAME, [bug] if bug else [], dtype="bfloat16", level=level)
    found = explained(NAME, {tap: one.astype(np.float16) for tap, one in taps.items()})
    assert ids(found) == ({bug} if bug else set()) and not found.unexplained
    assert found.dtype == "bfloat16"


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("bug", "level"), [("attn-scale-missing", "modules"), (None, "modules"), (None, "layers")]
)
def test_values_that_were_widened_to_be_stored_do_not_get_finer_by_being_called_float32(
    bug, level, half
):
    taps = port(NAME, [bug] if bug else [], dtype=half, level=level)
    found = said_to_be_wide({tap: one.astype(np.float32) for tap, one in taps.items()})
    assert ids(found) == ({bug} if bug else set()) and not found.unexplained
    assert found.dtype == half  # of layers that are all wrong none would tell
    assert SAID.format(own=half) in found.conventions


def test_rounded_logits_do_not_make_a_float32_port_one_of_half_precision():
    logits = port(NAME, level="logits")["logits"]
    narrow = logits.astype(np.float16).astype(np.float32)
    assert said_to_be_wide({"logits": narrow}).dtype == "float32"


def test_who_stores_coarsely_what_is_said_to_be_float32_is_believed():
    taps = {tap: one.astype(np.float16) for tap, one in port(NAME).items()}
    found = said_to_be_wide(taps)
    assert (found.verdict, found.dtype) == ("clean", "float32")


def said_to_be_wide(taps):
    return explain(model_of(NAME), dumped(taps, NAME, dtype="float32"))
