"""What comes near to a few tokens, in the variants that all tokens tell."""

from tests.parity.explaining.searching.test_merged import search_of

PLAIN = ("mask-polarity-inverted", "")
OUTLIVED = ("mask-polarity-inverted", "blocked by a number that a sum in float32 outlives")
VALUES = ("rope-applied-to-v", "")
ROUNDED = ("rope-inv-freq-half", "frequencies in bfloat16")


def test_a_set_is_gone_on_with_in_the_variants_that_are_nearest_to_all_tokens():
    """By law: the last query sees nothing, and its variant hides a small bug in all others."""
    search, here = search_of(
        "model.layers.0.self_attn.o_proj", [ROUNDED, VALUES, OUTLIVED],
        faults=[PLAIN, OUTLIVED, VALUES], dtype="float16",
    )  # fmt: skip
    plain, right = (frozenset([here[mask], here[VALUES]]) for mask in (PLAIN, OUTLIVED))
    assert search.fit(right)[0] < search.fit(plain)[0] / 10
    for atoms in (plain, right):
        assert search.in_best_variants(atoms, search.atoms) == right
    assert search.near([plain], search.atoms)[0] == right
