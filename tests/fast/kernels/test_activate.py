"""Gates in machine code: over their whole range, at their edges, and on views."""

import numpy as np
import pytest

from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.activate import activated
from tests.draws import cast, normal
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

BFLOAT16 = DTYPES["bfloat16"]
EDGES = np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 3e38, -3e38, 1e-40] * 2)


def silu(x):
    """Return x / (1 + exp(-x)) in float64."""
    return x / (1 + np.exp(-x))


def gelu(x):
    """Return the tanh form of GELU in float64."""
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("gelu_form", [False, True])
def test_each_number_is_right_down_to_the_smallest(gelu_form):
    """By its formula: to a few units of the last place of every number that is not subnormal."""
    x = np.linspace(-110, 20, 16 * 400, dtype=np.float32).reshape(-1, 64)
    with np.errstate(over="ignore", under="ignore"):
        exact = (gelu if gelu_form else silu)(x.astype(np.float64))
    found = activated(x, None, gelu=gelu_form)
    assert found is not None
    full = np.abs(exact) > 1e-36
    # An exponent of -85 that is off by a unit of its last place is off by 8e-6 in its power.
    slack = 2e-5 if gelu_form else 6e-7
    assert np.abs(found[full] / exact[full] - 1).max() < slack
    assert np.abs(found - exact)[~full].max() < 3e-41
    assert full.any() and not full.all()


@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize("width", [16, 48])
def test_a_gate_is_its_two_parts(width, small, monkeypatch):
    """By law: bit for bit, and by its formula; both halves are columns of one wider product."""
    monkeypatch.setattr(kernel, "SMALL", small)
    both = normal(0, 2, 3, 2 * width) * 3
    gate, up = both[..., :width], both[..., width:]
    found, alone = (activated(gate, other, gelu=False) for other in (up, None))
    assert found is not None and alone is not None
    assert_same_bits(found, alone * up)
    assert_close(found, silu(gate.astype(np.float64)) * up, kind="rounded twice")


@pytest.mark.parametrize("gelu_form", [False, True])
def test_edges(gelu_form):
    """By hand: infinity stays, minus infinity is shut to -0, NaN spoils its own place alone."""
    found = activated(EDGES, None, gelu=gelu_form)
    shut = np.float32([np.inf, -0.0, np.nan, 0, -0.0, 3e38, -0.0])
    assert found is not None
    assert_same_bits(found.reshape(2, 8)[:, :7], np.stack([shut, shut]))
    np.testing.assert_allclose(found[[7, 15]], 5e-41, rtol=1e-4)


@pytest.mark.parametrize("why", ["float16", "a width of 24", "nothing"])
def test_what_has_no_kernel_is_left_to_numpy(why):
    x = np.zeros((0 if why == "nothing" else 2, 24 if "24" in why else 32), np.float32)
    x = x.astype(np.float16) if why == "float16" else x
    assert activated(x, x, gelu=False) is None


@pytest.mark.parametrize("gelu_form", [False, True])
def test_a_gate_in_bfloat16_is_rounded_before_its_product(gelu_form):
    """By law: the bits of float32's activation, rounded, times `up`, rounded by NumPy."""
    gate, up = (cast(normal(seed, 3, 48) * 3, BFLOAT16) for seed in range(2))
    gate[0, :8] = EDGES[:8]
    alone = activated(gate.astype(np.float32), None, gelu=gelu_form)
    found = activated(gate, up, gelu=gelu_form)
    assert alone is not None and found is not None
    with np.errstate(invalid="ignore", over="ignore"):
        assert_same_bits(found, alone.astype(BFLOAT16) * up)


def test_both_halves_of_a_gate_are_of_one_kind():
    """By hand: a kernel reads all of its arrays alike."""
    x = normal(0, 2, 32)
    assert activated(x, cast(x, BFLOAT16), gelu=False) is None
