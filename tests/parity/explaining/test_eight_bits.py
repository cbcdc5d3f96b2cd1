"""A port that keeps weights or activations in 8 bits is told so, and its bugs beside it. By law."""

import pytest

from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

NAME = "models/untied_float32"
BY_TOKEN = "activations-by-token"
WEIGHTS = [
    "port-quantised-int8[a row to a scale]",
    "port-quantised-int8[a row to a scale in bfloat16]",
    "port-quantised-int8[a row to a scale, of 127.5 steps]",
    "port-quantised-fp8[a row to a scale]",
    "port-quantised-nf4",
]
W8A8 = [
    (WEIGHTS[0], f"{BY_TOKEN}[whole numbers]"),
    (WEIGHTS[3], f"{BY_TOKEN}[float8]"),
]


@sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("bug", WEIGHTS)
def test_weights_are_told(bug, level, dtype):
    found = explained(NAME, port(NAME, [bug], level=level, dtype=dtype))
    assert found.faults == [] == found.unexplained
    (line,) = found.weights
    name, _, variant = bug.removesuffix("]").partition("[")
    assert line.startswith(f"{name}: ") and variant in line


@sampled(1, "float32-modules-both0")
@pytest.mark.parametrize("both", W8A8)
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("dtype", ["float32"])
def test_activations_by_token_are_a_convention_beside_them(both, level, dtype):
    found = explained(NAME, port(NAME, both, level=level, dtype=dtype))
    assert found.faults == [] == found.unexplained
    assert any(line.startswith(f"{BY_TOKEN}: ") for line in found.conventions)
    assert found.weights[0].startswith(both[0].partition("[")[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_no_bug_of_their_own(dtype):
    """In bfloat16 a token at a step may fall to either side: that is said, and no alarm."""
    found = explained(NAME, port(NAME, [f"{BY_TOKEN}[whole numbers]"], dtype=dtype))
    assert found.verdict == "clean"
    assert found.conventions[0].startswith(f"{BY_TOKEN}: ")


def test_a_bug_is_named_beside_them():
    bugs = ["attn-scale-twice", *W8A8[0]]
    assert ids(explained(NAME, port(NAME, bugs))) == {"attn-scale-twice"}


GGUF = "gguf/qwen2_biased.gguf"  # Q8_0


@pytest.mark.parametrize(("bug", "says"), [
    ("port-quantised-float16[packed ones, unpacked]", "weights"),
    (f"{BY_TOKEN}[whole numbers]", "conventions"),
    ("activations-in-8-bits[32 to a scale, steps in float32]", "conventions"),
    ("activations-in-8-bits[32 to a scale, by steps in float16]", "conventions"),
])  # fmt: skip
def test_other_arithmetic_over_a_packed_file_is_told(bug, says):
    found = explained(GGUF, port(GGUF, [bug]))
    assert found.faults == [] == found.unexplained
    assert any(line.startswith(bug.partition("[")[0]) for line in getattr(found, says))
