"""What is quiet shows beside one variant of a louder bug alone. By witness."""

from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

NAME = "models/untied_float32"
ON_VALUES = "rope-applied-to-v[by the frequencies of the keys, each token by its place]"


@sampled(0)
def test_a_quiet_bug_is_named_beside_the_variant_that_takes_part_in_it():
    """Values turn by the tables, which are a little wrong; the keys' sign, they do not take over.

    To the gate, values that turn by right tables explain the port as well.
    """
    bugs = ["rope-sign-flipped", ON_VALUES, "rope-inv-freq-half[frequencies in bfloat16]"]
    found = explained(NAME, port(NAME, bugs, dtype="bfloat16"))
    assert ids(found) == {bug.partition("[")[0] for bug in bugs} and not found.unexplained
