"""Attention goes as one operation; scores and weights are computed for whoever listens."""

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference import ops
from tests.parity.builders import checkpoint, planted
from tests.tolerances import assert_same_bits

TOKENS = np.random.default_rng(0).integers(0, 40, (2, 150))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("dense"), max_position_embeddings=256)


@pytest.mark.parametrize("lengths", [None, [150, 70]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_listener_changes_no_bit(dense, dtype, lengths):
    """By law, beyond the queries that are taken at a time."""
    model, taps = reference.load(dense, dtype=dtype), {}
    heard = model.forward(TOKENS, lengths=lengths, trace=taps.__setitem__)
    assert taps["model.layers.1.self_attn.scores"].shape == (2, 4, 150, 150)
    assert_same_bits(model.forward(TOKENS, lengths=lengths), heard)


def test_parts_that_were_replaced_are_called_without_a_listener_too(dense):
    """By hand: keys that all weigh nothing leave nothing to attend to."""
    called = planted(
        dense, softmax=lambda scores, mask, **how: 0 * ops.softmax(scores, mask, **how)
    )
    blind = planted(dense, attention_context=lambda *given: 0 * ops.attention_context(*given))
    found = called.forward(TOKENS)
    np.testing.assert_array_equal(found, blind.forward(TOKENS))
    assert np.abs(found - reference.load(dense).forward(TOKENS)).max() > 0.01
