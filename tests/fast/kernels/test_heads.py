"""Heads normalised and turned in one start: the bits of the two kernels that do it one by one."""

import numpy as np
import pytest

from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.heads import normalized_and_turned
from lockstep.fast.kernels.normalize import normalized
from lockstep.fast.kernels.turn import turned
from tests.draws import cast, normal, places
from tests.ops_backends import DTYPES
from tests.sampled import sampled
from tests.tolerances import assert_same_bits

SPEEDS = 100.0 ** (-np.arange(16) / 16)
GAINS = [normal(2, 32), normal(3, 32)]
KINDS = [DTYPES["float32"], DTYPES["bfloat16"]]
EPS, FACTOR = 1e-6, 1.2


def apart(heads, gain, positions, speeds):
    normed = normalized(heads, cast(gain, heads.dtype), eps=EPS)
    assert normed is not None
    return turned(normed.swapaxes(1, 2), positions, speeds, factor=FACTOR)


def together(queries, keys, positions, speeds=SPEEDS):
    gains = [cast(gain, keys.dtype) for gain in GAINS]
    return normalized_and_turned(queries, keys, gains, positions, speeds, eps=EPS, factor=FACTOR)


@sampled(3)
@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize("rows", ["alike", "each its own"])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_the_parts_of_a_wider_product(dtype, rows, small, monkeypatch):
    """By law: the same bits as one by one, of columns that a joined product leaves, on one core and
    on all.
    """
    monkeypatch.setattr(kernel, "SMALL", small)
    wide, positions = normal(0, 2, 3, 7 * 32, dtype=dtype), places(0, 2, 3)
    queries, keys = (wide[..., cut].reshape(2, 3, -1, 32) for cut in (np.s_[:128], np.s_[128:192]))
    speeds = SPEEDS if rows == "alike" else SPEEDS * np.float64([[1], [3]])
    found = together(queries, keys, positions, speeds)
    assert found is not None and [one.shape[1] for one in found] == [4, 2]
    for heads, gain, one in zip((queries, keys), GAINS, found, strict=True):
        assert_same_bits(one, apart(heads, gain, positions, speeds))


def test_what_is_not_finite_stays_in_its_head():
    """By law: it is that of one by one, and no other head knows of it."""
    queries, keys, at = normal(0, 1, 1, 2, 32), normal(1, 1, 1, 1, 32), np.array([[7]])
    queries[0, 0, 1, 5] = np.inf
    found = together(queries, keys, at)
    assert found is not None
    assert_same_bits(found[0], apart(queries, GAINS[0], at, SPEEDS))
    assert np.isfinite(found[0][0, 0]).all() and np.isfinite(found[1]).all()
    assert not np.isfinite(found[0][0, 1]).all()


@pytest.mark.parametrize("why", ["float16", "a width of 48", "no token"])
def test_what_has_no_kernel_is_left_to_others(why):
    length, width = 0 if why == "no token" else 2, 48 if "48" in why else 32
    x = normal(0, 1, length, 3, width, dtype=np.float16 if why == "float16" else np.float32)
    gains = [normal(1, width)] * 2
    at, speeds = np.arange(length)[None], np.ones(width // 2)
    assert normalized_and_turned(x, x, gains, at, speeds, eps=EPS, factor=1.0) is None
