"""A head in half precision is a bug of a port in float32; products that all are so are none."""

import pytest

from lockstep.parity.explaining.conventions.half_products import in_half
from tests.parity.explaining.ports import explained, ids, port

NAME = "models/untied_float32"


def in_bfloat16(call, graph):
    return in_half(call, "bfloat16") if call.op == "linear" else None


def head_in_bfloat16(call, graph):
    return in_bfloat16(call, graph) if call.layer is None else None


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_port_whose_products_are_all_in_half_precision_is_judged_so(level):
    found = explained(NAME, port(NAME, [in_bfloat16], level=level))
    assert (found.verdict, found.dtype) == ("clean", "bfloat16")
    assert any("bfloat16" in line for line in found.conventions)


@pytest.mark.parametrize("bugs", [[], ["rms-eps-wrong"]])
def test_a_head_alone_in_half_precision_is_a_bug(bugs):
    """By witness: the layers are nearer to what is right than such products allow."""
    found = explained(NAME, port(NAME, [*bugs, head_in_bfloat16], level="layers"))
    assert (ids(found), found.dtype) == ({"logits-half-precision", *bugs}, "float32")
