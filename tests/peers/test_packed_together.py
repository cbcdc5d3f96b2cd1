"""Bugs of packed weights together: each set of them against a loader that unpacks step by step."""

from itertools import combinations, product

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.graph.graph import values_of
from tests.parity.faults.planted import world
from tests.proof.bugs.quantisation import TILES
from tests.proof.packed import unpacked
from tests.proof.registry import every_bug, in_order

NAME, PLACE = "models/affine_4_64", "model.layers.0.mlp.down_proj"
LENGTH = 40
PACKED = [one for one in every_bug() if one.stage == "packed"]
SITES = sorted({one.site for one in PACKED})


def sets():
    """Yield every two, three and four bugs, of sites of their own.

    Where groups are taken for twice as wide, nothing says how wide a tile of them is.
    """
    for count in range(2, len(SITES) + 1):
        for sites in combinations(SITES, count):
            for bugs in product(*([one for one in PACKED if one.site == site] for site in sites)):
                if TILES not in sites or all(bug.id != "quant-bits-global" for bug in bugs):
                    yield bugs


def product_of():
    """Return the call of one product, and what it takes and reads as it should."""
    here = world(NAME)
    call = here.graph.calls[here.graph.taps[PLACE]]
    return here, call, here.evaluator().resolved(call.inputs[1], {})


def inputs(width):
    return np.random.default_rng(5).standard_normal((1, LENGTH, width)).astype(np.float32)


def by_steps(bugs):
    """Return the product of weights that a loader with these bugs reads."""
    stored = product_of()[2]
    codes = unpacked(np.asarray(stored.packed), *map(floats, (stored.scales, stored.biases)))
    for bug in in_order(bugs):
        codes = bug.plant(codes, **bug.settings)
    weights = codes.weights()
    return inputs(weights.shape[1]) @ weights.T


def floats(values):
    return np.asarray(values).astype(np.float32)


def by_catalogue(variants):
    """Return what rewrites make of the same product, in the order of the catalogue."""
    here, call, stored = product_of()
    for variant in variants:
        call = variant(call, here.graph) or call
    return here.evaluator().compute(call, {call_input(call): inputs(stored.shape[1])})


def call_input(call):
    return next(iter(values_of(call)))


def in_catalogue(bug):
    """Return the place and the rewrite of the variant that does what a bug does alone."""
    expected = by_steps([bug])
    for place, fault in enumerate(catalogue()):
        for variant in fault.variants.values() if fault.id == bug.id else ():
            if np.allclose(by_catalogue([variant]), expected, atol=1e-3):
                return place, variant
    return None


def test_sets_of_packed_bugs_are_what_a_loader_reads():
    found = {bug.name: in_catalogue(bug) for bug in PACKED}
    known = {name: one for name, one in found.items() if one is not None}
    assert len(known) > len(found) * 3 / 4, found
    tried = 0
    for bugs in sets():
        if all(bug.name in known for bug in bugs):
            ordered = sorted((known[bug.name] for bug in bugs), key=lambda one: one[0])
            ours = by_catalogue([variant for _, variant in ordered])
            names = [bug.name for bug in bugs]
            np.testing.assert_allclose(ours, by_steps(bugs), atol=1e-3, err_msg=str(names))
            tried += 1
    assert tried > 30


@pytest.mark.parametrize("bug", PACKED, ids=lambda bug: bug.name)
def test_each_is_in_the_catalogue(bug):
    assert in_catalogue(bug) is not None
