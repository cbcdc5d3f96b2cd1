"""Kernels that are run again over the same arrays: the same bits as one after another."""

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast.kernels import kernel
from lockstep.fast.kernels.normalize import normalized
from lockstep.fast.kernels.plus import sums
from lockstep.fast.kernels.product import product
from lockstep.fast.kernels.replay import Replays
from lockstep.fast.kernels.tile import possible
from tests.draws import normal, packed_matrix
from tests.tolerances import assert_same_bits

WEIGHT, _ = packed_matrix(0, 128, 128, bits=4, group=64, dtype=ml_dtypes.bfloat16)
GAIN = normal(9, 128)


def part(x, y):
    """A norm, a product and a sum, of kernels alone."""
    return [np.asarray(sums(x, np.asarray(product(normalized(y, GAIN, eps=1e-6), WEIGHT))))]


def given(seed):
    return normal(seed, 1, 128), normal(seed + 1, 1, 128)


@pytest.mark.parametrize("small", [2**62, 0])
def test_what_is_run_again_has_the_same_bits(small, monkeypatch):
    """By law: on one core and on all, whatever the inputs; earlier results stay as they were."""
    monkeypatch.setattr(kernel, "SMALL", small)
    replays, tokens = Replays(), [given(seed) for seed in range(5)]
    found = [replays("part", part, inputs)[0] for inputs in tokens]
    for one, inputs in zip(found, tokens, strict=True):
        assert_same_bits(one, part(*inputs)[0])
    known = replays.known["part"]
    assert known.trusted and len(known.jobs) == 3 and known.shared == (small == 0)


def test_from_the_third_time_on_no_function_is_called():
    """By law: the first is recorded, the second is done both ways."""
    replays, calls = Replays(), list[int]()
    for seed in range(5):
        replays("part", lambda *x: calls.append(0) or part(*x), given(seed))
    assert len(calls) == 2


def test_what_numpy_does_in_between_is_never_left_out():
    """By law: a function that is more than its kernels is called each time."""
    replays = Replays()

    def doubled(x, y):
        return part(np.multiply(x, 2), y)

    for seed in (0, 0, 1, 2):  # of the same numbers nothing can be told
        assert_same_bits(replays("part", doubled, given(seed))[0], doubled(*given(seed))[0])
    assert replays.known["part"].broken


@pytest.mark.parametrize("when", [0, 3])
def test_a_token_that_has_no_digits(when):
    """By law: its product is made of floats, as it is alone, and that of the next is not."""
    replays, bad = Replays(), given(9)
    bad[1][0, 5] = np.float32(3e38)

    def alone(x):
        return [np.asarray(product(x, WEIGHT))]

    for seed in range(6):
        x = bad[1] if seed == when else given(seed)[1]
        assert_same_bits(replays("part", alone, [x])[0], alone(x)[0])
    assert replays.known["part"].broken == (when == 0 and possible())


def test_other_weights_are_recorded_anew():
    """By law: they lie elsewhere; the same ones are not."""
    replays, one = Replays(), normal(0, 4)
    assert replays.over({"a": one}).known == {}
    replays.known["part"] = replays
    assert replays.over({"a": one}).known
    assert not replays.over({"a": one.copy()}).known


def test_two_threads_do_not_share_arrays():
    """By law: who comes while another one is at it computes for himself."""
    replays, inputs = Replays(), given(1)
    for _ in range(3):
        replays("part", part, inputs)
    before = replays.known["part"].inputs[0].copy()
    with replays.busy:
        assert_same_bits(replays("part", part, given(7))[0], part(*given(7))[0])
    np.testing.assert_array_equal(replays.known["part"].inputs[0], before)


def test_sums_are_numpys():
    """By loop: to the bit; what does not lie in rows of whole lanes is left to NumPy."""
    x, y = normal(0, 3, 5, 32), normal(1, 3, 5, 32)
    assert_same_bits(np.asarray(sums(x, y)), x + y)
    assert sums(x[..., :8], y[..., :8]) is None and sums(x[:, ::2], y[:, ::2]) is None
    assert sums(x.astype(np.float64), y.astype(np.float64)) is None
