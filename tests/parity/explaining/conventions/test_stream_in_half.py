"""A stream that alone is kept in float16 is a bug of a float32 port, not what it computes in."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, ids, port

NAME, BUG = "models/untied_float32", "fp16-residual-overflow"


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_stream_in_float16_is_named(level):
    """By law: every layer's output is held by float16, and the logits are not."""
    found = explained(NAME, port(NAME, [BUG], level=level))
    assert ids(found) == {BUG} and found.dtype == "float32" and not found.unexplained
    assert found.conventions == []


def test_a_port_in_float16_that_ends_in_float32_is_none():
    """By law: its layers round often, though its last norm and its logits are of float32."""
    taps, wide = port(NAME, dtype="float16", level="layers"), port(NAME, level="layers")
    layers = {tap for tap in taps if tap.rpartition(".")[2].isdigit() or "embed" in tap}
    mixed = {tap: taps[tap].astype(np.float32) if tap in layers else wide[tap] for tap in taps}
    found = explained(NAME, mixed)
    assert found.dtype == "float16" and BUG not in ids(found)
    assert any("most values are float16" in line for line in found.conventions)
