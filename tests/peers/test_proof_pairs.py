"""Two bugs in a port of transformers are what the catalogue makes of both. By witness."""

import pytest

from tests.proof.run.pairs import Pairs
from tests.proof.run.places import Places

PAIRS = [
    ("act-silu-vs-gelu (gelu for silu)", "gated-product-wrong (both activated)"),
    ("swiglu-gate-up-swapped (everywhere)", "gated-product-wrong (the gate alone)"),
    ("rope-sign-flipped (every layer)", "rope-cos-sin-half"),
    ("gqa-tile-vs-repeat (every layer)", "v-taken-from-k (one layer)"),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return Pairs(Places(tmp_path_factory.mktemp("pairs")), "llama", seed=31)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda name: name.partition(" ")[0])
def test_two_bugs_come_out_as_in_the_port(pairs, one, other):
    forms = [pairs.forms(bug) for bug in (one, other)]
    assert all(forms)
    assert pairs.composed(*forms, pairs.taken(one, other))


def test_one_of_two_bugs_alone_is_not_both(pairs):
    one, other = PAIRS[0]
    both = pairs.taken(one, other)
    assert not any(pairs.gives([atom], both) for bug in (one, other) for atom in pairs.forms(bug))
