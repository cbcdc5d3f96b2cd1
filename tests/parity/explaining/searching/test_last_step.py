"""The last step of a search: a bug of what all but explains a piece, in another variant."""

from tests.parity.explaining.searching.test_merged import search_of

TWICE = ("rope-applied-twice", "")
ANGLES = ("rope-inv-freq-half", "angles in bfloat16")
ROUNDED = ("rope-inv-freq-half", "frequencies in bfloat16")


def test_what_all_but_explains_a_piece_does_so_in_another_variant():
    """By law: beside a large bug, two roundings leave nearly as little, and one of them is there.

    No bug more helps the other one: what it did would have to be undone.
    """
    search, here = search_of(
        "model.layers.0.self_attn.o_proj", [ROUNDED, TWICE],
        faults=[TWICE, ANGLES, ROUNDED], dtype="float16",
    )  # fmt: skip
    near, right = (frozenset([here[TWICE], here[one]]) for one in (ANGLES, ROUNDED))
    assert 1 < search.fit(right)[0] < 1.5 < search.fit(near)[0] < 8
    assert search.finished([near], [here[TWICE], here[ANGLES]]) == []
    assert search.finished([near], search.atoms) == [right]
