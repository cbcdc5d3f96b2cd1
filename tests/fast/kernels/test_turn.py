"""Rope in machine code: the edges of its loops, and views. What rope is, `test_rope` says."""

import numpy as np
import pytest

from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.turn import turned, turns
from tests.draws import cast, normal, places
from tests.ops_backends import DTYPES
from tests.tolerances import assert_close, assert_same_bits

BFLOAT16 = DTYPES["bfloat16"]
SPEEDS = 100.0 ** (-np.arange(16) / 16)


def exact(x, positions, speeds, factor):
    """Turn pair (j, j + D/2) in float64."""
    angles = positions[:, None, :, None] * np.asarray(speeds)[..., None, None, :]
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@pytest.mark.parametrize("small", [0, 2**62])
@pytest.mark.parametrize("rows", ["alike", "each its own"])
def test_heads_that_come_as_a_view(rows, small, monkeypatch):
    """By its formula: (B, H, L, D) whose heads and tokens change places, on one core and on all."""
    monkeypatch.setattr(kernel, "SMALL", small)
    x, positions = normal(0, 2, 5, 3, 32).swapaxes(1, 2), places(0, 2, 5)
    speeds = SPEEDS if rows == "alike" else SPEEDS * np.float64([[1], [3]])
    found = turned(x, positions, speeds, factor=1.2)
    assert_close(found, exact(x, positions, speeds, 1.2), kind="rotation")


def test_positions_that_changed_in_place_are_seen():
    """By law: what is kept of a step is its cosines, by their positions, and not by their array."""
    x, positions = normal(0, 1, 1, 4, 32), np.arange(4)[None]
    before = turned(x, positions, SPEEDS, factor=1.0)
    positions += 5
    after = turned(x, positions, SPEEDS, factor=1.0)
    assert_close(before, exact(x, np.arange(4)[None], SPEEDS, 1.0), kind="rotation")
    assert_close(after, exact(x, np.arange(5, 9)[None], SPEEDS, 1.0), kind="rotation")


def test_a_step_makes_its_cosines_once():
    """By hand: 28 layers turn queries and keys, and one of these calls computes them."""
    turns.cache_clear()
    for _ in range(28):
        turned(normal(0, 1, 4, 1, 32), np.array([[7]]), SPEEDS, factor=1.0)
        turned(normal(1, 1, 2, 1, 32), np.array([[7]]), SPEEDS, factor=1.0)
    assert turns.cache_info().misses == 1


def test_edges():
    """By hand: at position 0 all bits stay; infinity and NaN spoil their partners alone."""
    x = normal(0, 1, 1, 1, 32)
    x[0, 0, 0, [0, 16, 3, 20]] = [-0.0, 2, np.nan, np.inf]
    found = turned(x, np.array([[0]]), SPEEDS, factor=1.0)
    expected = x.copy()
    expected[0, 0, 0, [19, 4]] = np.nan
    assert found is not None
    assert_same_bits(found, expected)


@pytest.mark.parametrize("why", ["float16", "a width of 48", "no token"])
def test_what_has_no_kernel_is_left_to_numpy(why):
    length, width = 0 if why == "no token" else 2, 48 if "48" in why else 32
    x = normal(0, 1, 3, length, width, dtype=np.float16 if why == "float16" else np.float32)
    assert turned(x, np.arange(length)[None], np.ones(width // 2), factor=1.0) is None


def test_bfloat16_is_rounded_at_the_end():
    """By law: the bits of the same heads in float32, rounded by NumPy; as a view too."""
    x, positions = cast(normal(0, 2, 5, 3, 32), BFLOAT16).swapaxes(1, 2), places(0, 2, 5)
    wide = turned(x.astype(np.float32), positions, SPEEDS, factor=1.2)
    found = turned(x, positions, SPEEDS, factor=1.2)
    assert wide is not None and found is not None
    assert_same_bits(found, wide.astype(BFLOAT16))
