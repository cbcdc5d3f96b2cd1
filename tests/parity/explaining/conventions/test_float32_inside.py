"""A float64 port whose norms and softmax are made in float32 is right, and its bugs have names."""

import numpy as np
import pytest

from lockstep.parity.explaining.conventions.float32_inside import SAID
from lockstep.parity.faults.rewrites import rewrite
from tests.parity.explaining.ports import explained, ids, port, rewrite_of

NAME = "models/untied_float32"


@rewrite(("rms_norm", "softmax"))
def in_float32(call, graph):
    def made(ops, first, *rest, **options):
        narrow = [one.astype(np.float32) if is_wide(one) else one for one in (first, *rest)]
        return getattr(ops, call.op)(*narrow, **options).astype(first.dtype)

    return call.replaced(made)


def is_wide(value):
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def in_double(bugs=(), **options):
    return port(NAME, bugs, dtype="float64", **options)


@pytest.mark.parametrize("level", ["taps", "modules", "layers", "logits"])
def test_a_right_port_with_parts_in_float32_is_right(level):
    found = explained(NAME, in_double([in_float32], level=level))
    assert (found.verdict, found.dtype) == ("clean", "float32") and SAID in found.conventions


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("bug", ["attn-scale-missing", "rope-sign-flipped"])
def test_its_bugs_are_named_all_the_same(bug, level):
    found = explained(NAME, in_double([in_float32, rewrite_of(bug)], level=level))
    assert ids(found) == {bug} and not found.unexplained and SAID in found.conventions


@pytest.mark.parametrize("bugs", [[], ["attn-scale-missing"]])
def test_a_port_that_is_float64_throughout_is_judged_as_that(bugs):
    found = explained(NAME, in_double(bugs))
    assert (ids(found), found.dtype) == ({*bugs}, "float64") and SAID not in found.conventions
