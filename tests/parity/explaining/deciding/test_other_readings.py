"""What is quiet shows beside one variant of a louder bug alone. By witness."""

from types import SimpleNamespace

from lockstep.parity.explaining.deciding.other_readings import acting
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

NAME, PACKED = "models/untied_float32", "models/affine_4_64"
ON_VALUES = "rope-applied-to-v[by the frequencies of the keys, each token by its place]"


@sampled(0)
def test_a_quiet_bug_is_named_beside_the_variant_that_takes_part_in_it():
    """Values turn by the tables, which are a little wrong; the keys' sign, they do not take over.

    To the gate, values that turn by right tables explain the port as well.
    """
    bugs = ["rope-sign-flipped", ON_VALUES, "rope-inv-freq-half[frequencies in bfloat16]"]
    found = explained(NAME, port(NAME, bugs, dtype="bfloat16"))
    assert ids(found) == {bug.partition("[")[0] for bug in bugs} and not found.unexplained


def test_a_variant_that_is_whole_is_read_in_all_its_calls():
    """Of a bug's two forms one changes the norms too. Half of that is no form of it.

    Norms behind rope round more in half precision, and tables of angles would make up for the rest.
    """
    bug = "qk-norm-rope-order"
    found = explained(PACKED, port(PACKED, [bug], dtype="bfloat16", level="layers"))
    assert ids(found) == {bug} and not found.unexplained


def test_the_calls_of_a_variant_by_hand():
    one = SimpleNamespace(calls=frozenset({1, 2, 3}), whole=False)
    every = SimpleNamespace(calls=frozenset({1, 2, 3}), whole=True)
    piece, atom = Piece(3, (0, 1, 2, 3)), SimpleNamespace(calls=frozenset({2, 9}))
    assert acting(one, piece, atom) == {2}  # pyright: ignore[reportArgumentType]
    assert acting(every, piece, atom) == {1, 2, 3}  # pyright: ignore[reportArgumentType]
    atom.calls = frozenset({9})
    assert acting(one, piece, atom) == {1, 2, 3}  # pyright: ignore[reportArgumentType]
