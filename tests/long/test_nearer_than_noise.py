"""What only makes noise passes the gate in the place of a bug, and is not named for it. By law."""

from tests.parity.explaining.ports import explained, port

NAME, LENGTH = "models/sliding_bfloat16", 12
BUGS = {"softmax-low-precision": "in bfloat16", "sdpa-scale-folded-half": "in bfloat16"}


def test_a_bug_that_is_truly_nearer_is_tried_where_a_coarser_rounding_passes():
    """Rounded angles pass beside the softmax too, and the scale leaves half as much."""
    bugs = [f"{id}[{variant}]" for id, variant in BUGS.items()]
    taps = port(NAME, bugs, dtype="float16", length=LENGTH)
    here = (".layers.1.", "model.layers.0")
    layer = {tap: value for tap, value in taps.items() if here[0] in tap or tap == here[1]}
    found = explained(NAME, layer, length=LENGTH)
    assert {one.id: one.variant for one in found.faults} == BUGS
