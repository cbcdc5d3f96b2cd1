"""Of what a port computed in half precision, and handed out in float32, it is said. By law."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, ids, port

NAME = "models/untied_float32"
NONE = ()  # bugs to look for
SAID = "all of it is within what"


def lines(found):
    return [line for line in found.conventions if line.startswith(SAID)]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_logits_alone_that_are_wide_do_not_show_what_they_were_computed_in(half):
    taps = port(NAME, [], dtype=half, level="logits")
    wide = {"logits": off_the_grid(taps["logits"])}
    found = explained(NAME, wide, NONE)
    assert found.verdict == "unknown"
    (line,) = lines(found)
    assert f"say --dtype {half}" in line
    assert explained(NAME, wide, dtype=half).verdict == "clean"


def off_the_grid(logits):
    """Return float32 logits of a half's size of error that no half holds."""
    wide = logits.astype(np.float32)
    return wide * (1 + np.float32(1e-5) * np.sin(np.arange(wide.size, dtype=np.float32))).reshape(
        wide.shape
    )


def test_a_bug_is_not_within_it():
    found = explained(NAME, port(NAME, ["attn-scale-twice"], level="layers"))
    assert ids(found) == {"attn-scale-twice"} and not lines(found)


def test_where_something_is_right_in_float32_the_port_is():
    taps = port(NAME, ["logits-half-precision[in bfloat16]"], level="modules")
    found = explained(NAME, taps)
    assert ids(found) == {"logits-half-precision"} and not lines(found)


def test_what_is_unknown_and_large_is_not_either():
    taps = port(NAME, [], level="layers")
    taps["model.layers.0"] = taps["model.layers.0"] * np.float32(1.5) ** np.arange(
        taps["model.layers.0"].shape[-1], dtype=np.float32
    )
    found = explained(NAME, taps, NONE)
    assert found.unexplained and not lines(found)


def test_of_a_dtype_that_was_said_nothing_is_asked():
    taps = {"logits": off_the_grid(port(NAME, [], dtype="bfloat16", level="logits")["logits"])}
    found = explained(NAME, taps, NONE, dtype="float32")
    assert found.verdict == "unknown" and not lines(found)
