"""Sketches: what they hold by loop, how far apart they say tensors are by law, places by hand."""

import itertools
import math

import numpy as np
import pytest

from lockstep.parity.judging.metrics import distance
from lockstep.parity.sketches.sketch import (
    PARTS,
    PROJECTIONS,
    Part,
    apart,
    length_of,
    parts_of,
    place,
    signs_at,
    sketch,
)

SHAPES = [(1, 7, 64), (1, 4, 7, 16), (1, 4, 9, 9), (3, 50), (17,), (1,), ()]


def signs(shape, draw):
    return signs_at(np.random.PCG64(draw), 0, math.prod(shape)).reshape(shape)


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_an_axis_is_cut_into_equal_parts():
    """By hand: 11 into 8, and an axis of 1 into none."""
    spans = [(part.start, part.stop) for part in parts_of((1, 11))]
    assert spans == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6), (6, 8), (8, 9), (9, 11)]
    assert parts_of((1, 3)) == [Part(1, 0, 1), Part(1, 1, 2), Part(1, 2, 3)]
    assert parts_of((5, 0)) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_projections_are_those_of_the_parts(shape):
    """By loop."""
    x = random(shape)
    numbers = sketch(x)
    assert numbers.shape == (length_of(shape),)
    peak, rows = numbers[0], numbers[1:].reshape(-1, 1 + PROJECTIONS)
    for part, row in zip(parts_of(shape), rows, strict=True):
        squares, totals = 0.0, [0.0] * PROJECTIONS
        for index in itertools.product(*map(range, shape)):
            if index and not part.start <= index[part.axis] < part.stop:
                continue
            squares += float(x[index]) ** 2
            for draw in range(PROJECTIONS):
                totals[draw] += float(x[index]) * int(signs(shape, draw)[index])
        np.testing.assert_allclose(row * peak, [squares**0.5, *totals], atol=1e-12)


def test_signs_are_the_bits_of_pcg64():
    """By hand: its first word for seed 0 is 11749869230777074271, whose lowest byte is 0x5f."""
    assert int(np.random.PCG64(0).random_raw()) == 11749869230777074271
    assert signs((8,), 0).tolist() == [-1, 1, -1, 1, 1, 1, 1, 1]
    assert abs(int(signs((100_000,), 1).sum())) < 5 * 100_000**0.5


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("error", [1e-6, 1e-2, 1.0])
def test_the_distance_of_sketches_is_that_of_the_tensors(shape, error):
    """By law: on average the square of the one is that of the other."""
    found = []
    for seed in range(40):
        truth = random(shape, seed)
        port = truth + error * random(shape, seed + 1000)
        far = apart(sketch(truth), sketch(port), shape)
        found.append(far.rms_rel / distance(port, truth).rms_rel)
    assert 0.9 < np.sqrt(np.mean(np.square(found))) < 1.25  # the larger of two axes is taken
    assert min(found) > 0.4 and max(found) < 2.0


def test_a_factor_is_told_exactly_and_the_distance_nearly():
    """By law."""
    x = random((1, 7, 64))
    far = apart(sketch(x), sketch(1.25 * x), x.shape)
    assert (far.gain, far.cosine) == pytest.approx((1.25, 1.0))
    assert far.rms_rel == pytest.approx(0.25, rel=0.2)


def test_a_huge_tensor_overflows_nothing():
    x = random((2, 9)) * 1e300
    far = apart(sketch(x), sketch(1.5 * x), x.shape)
    assert (far.gain, far.rms_rel) == (pytest.approx(1.5), pytest.approx(0.5, rel=0.3))


@pytest.mark.parametrize("kept", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ((0, 4, slice(None)), "[0, 4, :]"),
        ((0, slice(None), slice(16, 32)), "[0, :, 16..31]"),
        ((0, 2, 20), "[0, 2, 16..23]"),
    ],
)
def test_a_part_that_differs_is_placed(where, said, kept):
    """By hand."""
    truth = random((1, 7, 64))
    port = truth.copy()
    port[where] += 0.5
    far = apart(sketch(truth).astype(kept), sketch(port), truth.shape)
    assert place(far.parts > 1e-9 * far.size, truth.shape) == said


def test_spans_that_do_not_touch_are_all_said():
    """By hand."""
    bad = np.array([part.axis == 1 and part.start in (1, 2, 5) for part in parts_of((1, 7, 64))])
    assert place(bad, (1, 7, 64)) == "[0, 1..2+5, :]"
    assert len(bad) == 7 + PARTS
