"""Distances between two tensors. By hand, and by law."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.dumps import parts
from lockstep.parity.dumps.crew import Crew
from lockstep.parity.judging.compiled import BLOCK, KINDS, LANES, blocks_of, machine_code, seen_by
from lockstep.parity.judging.histogram import BEFORE, CHUNK, SHIFT
from lockstep.parity.judging.metrics import Distance, difference, distance, rms

INF, NAN = np.inf, np.nan


def arrays(*values):
    return [np.array(value, np.float64) for value in values]


def test_a_worked_example():
    found = distance(*arrays([6.0, 9.0], [3.0, 4.0]))
    assert found.max_abs == 5
    assert found.rms_rel == pytest.approx(np.sqrt(34 / 25))
    assert found.gain == pytest.approx(54 / 25)
    assert found.cosine == pytest.approx(54 / (5 * np.sqrt(117)))


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.5, 1e150, 1e-150])
def test_the_gain_of_a_scaled_copy_is_the_factor(factor):
    truth = np.array([[1.0, -2.0], [3.0, 0.5]])
    found = distance(truth * factor, truth)
    assert found.gain == pytest.approx(factor)
    assert found.cosine == pytest.approx(np.sign(factor))


def test_nothing_overflows():
    huge = np.array([1e300, -1e300])
    assert distance(huge, huge) == Distance(0, 0, 1, 1)


def test_what_is_not_defined_is_none():
    zero, one = arrays([0.0, 0.0], [1.0, 1.0])
    assert distance(zero, zero) == Distance(0, None, None, None)
    assert distance(one, zero) == Distance(1, None, None, None)
    assert distance(zero, one) == Distance(1, 1, None, 0)
    assert distance(*arrays([], [])) == Distance(0, None, None, None)


def test_equal_infinities_differ_by_nothing():
    assert difference(*arrays([INF, -INF, 1], [INF, -INF, 1])).tolist() == [0, 0, 0]
    assert difference(*arrays([INF, -INF], [-INF, 1])).tolist() == [INF, -INF]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_both_mask_hides_nothing(dtype, compiled):
    """By hand: beside shared infinities 3 and 4 should be, and 6 and 9 are: sqrt(34 / 25) off."""
    port, truth = (np.array(one, dtype) for one in ([-INF, 6, INF, 9], [-INF, 3, INF, 4]))
    found = distance(port, truth, crew=Crew(1, compiled=compiled))
    assert found.max_abs == 5
    assert found.rms_rel == pytest.approx(np.sqrt(34 / 25))
    assert found.gain == pytest.approx(54 / 25)
    assert found.histogram is not None
    # Over 2.5, the root mean square of 0, 3, 0 and 4: 1.2 and 2.
    assert (found.histogram.zero, found.histogram.first, found.histogram.counts) == (2, 0, (2,))
    assert found.histogram.not_finite == 0
    assert distance(truth, truth, crew=Crew(1, compiled=compiled)).rms_rel == 0


def test_a_mask_is_more_than_zeros():
    """By hand: zeros and infinities that agree are compared, though nothing else is there."""
    mask = np.array([0, -INF], np.float32)
    assert distance(mask, mask) == Distance(0, 0, None, None)
    assert distance(mask + np.float32(1), mask) == Distance(1, None, None, None)


@pytest.mark.parametrize(("port", "truth"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, INF)])
def test_nan_never_vanishes(port, truth):
    found = distance(*arrays([port, 1.0], [truth, 1.0]))
    assert np.isnan(found.max_abs)
    assert np.isnan(found.rms_rel)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(1e-3, 1e3))
def test_rms_scales_with_its_values(values, factor):
    x = np.array(values)
    assert rms(x * factor) == pytest.approx(rms(x) * factor, rel=1e-12, abs=1e-300)


def test_rms_of_nothing_of_zeros_and_of_huge_values():
    assert rms(np.array([])) == 0
    assert rms(np.zeros(3)) == 0
    assert rms(np.array([3e300, 4e300])) == pytest.approx(np.sqrt(12.5) * 1e300)


def whole(port, truth):
    """Return the figures from all numbers at once, as the definitions have them."""
    port, truth = port.astype(np.float64).ravel(), truth.astype(np.float64).ravel()
    size, own = (np.sqrt(np.mean(one**2)) for one in (truth, port))
    overlap = np.mean(truth * port)
    off = port - truth
    return (np.abs(off).max(), np.sqrt(np.mean(off**2)) / size, overlap / size / own,
            overlap / size**2)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_parts_add_up_to_the_whole(dtype, count):
    """By law: where a tensor is cut changes nothing."""
    rng = np.random.default_rng(count)
    truth = rng.standard_normal((1, count)).astype(dtype)
    port = (1.25 * truth + 1e-2 * rng.standard_normal((1, count))).astype(dtype)
    found = distance(port, truth)
    figures = (found.max_abs, found.rms_rel, found.cosine, found.gain)
    assert figures == pytest.approx(whole(port, truth), rel=1e-12)
    assert found.histogram is not None
    assert found.histogram.zero + sum(found.histogram.counts) == count


def draw(dtype, size=3 * CHUNK - 1):
    rng = np.random.default_rng(3)
    truth = rng.standard_normal((1, size)).astype(np.float32)
    port = truth + np.float32(1e-3) * rng.standard_normal((1, size), np.float32)
    port[0, ::7] = truth[0, ::7]
    return port.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))), truth


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
@pytest.mark.parametrize("size", [1, 511, 512, 3 * CHUNK - 1])
@pytest.mark.parametrize("turned", [False, True])
def test_machine_code_finds_the_same(dtype, size, turned):
    """By a second computation: NumPy's, whose sums round otherwise; counts are the same ones."""
    port, truth = draw(dtype, size)[:: -1 if turned else 1]
    one, other = distance(port, truth), distance(port, truth, crew=Crew(1, compiled=True))
    assert (machine_code(port.dtype, truth.dtype) is not None) == (dtype in KINDS)
    assert one.histogram == other.histogram
    assert other.max_abs == one.max_abs
    for name in ("rms_rel", "cosine", "gain"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("types", [(">f4", ">f4"), (">f2", "<f2"), ("<f4", ">f4")])
def test_another_byte_order_is_read_as_it_is_meant(types):
    """By law: the same figures. The wrong way round what is exact in bfloat16 is tiny."""
    truth = np.random.default_rng(3).integers(-8, 8, 2000).astype(np.float32)
    found, plain = (
        distance((-truth).astype(ours), truth.astype(theirs), crew=Crew(1, compiled=True))
        for ours, theirs in (types, ["<" + kind[1:] for kind in types])
    )
    assert found.histogram == plain.histogram
    assert (found.max_abs, found.rms_rel) == (16, 2)
    assert (found.cosine, found.gain) == pytest.approx((-1, -1))


@pytest.mark.parametrize(("ours", "theirs"), [
    (INF, INF), (-INF, -INF), (INF, -INF), (NAN, 1), (1, NAN), (1, INF), (0, 0), (3e38, -3e38),
    (1e-45, 0),
])  # fmt: skip
def test_machine_code_finds_what_is_not_finite(ours, theirs):
    """By a second computation: one number among many."""
    port, truth = draw("float32", 1500)
    port[0, 1300], truth[0, 1300] = ours, theirs
    one, other = distance(port, truth), distance(port, truth, crew=Crew(1, compiled=True))
    assert repr(one.histogram) == repr(other.histogram)
    figures = [[found.max_abs, found.rms_rel, found.cosine, found.gain] for found in (one, other)]
    np.testing.assert_allclose(*figures, rtol=1e-12)


def test_machine_code_takes_shared_infinities_itself():
    """By hand: 3 and 4 should be, and 6 and 9 are; else NumPy would look at the piece again."""
    port, truth = (np.array(one, np.float32) for one in ([-INF, 6, INF, 9], [-INF, 3, INF, 4]))
    code = machine_code(port.dtype, truth.dtype)
    assert code is not None
    seen = seen_by(code, port, truth)
    assert (seen.most, seen.squares.tolist(), seen.across) == (5, [34, 25, 117], 54)
    assert (seen.tally[0], seen.tally.sum()) == (2, 4)


def test_machine_code_is_made_for_one_kind_of_array():
    """By law: what `tried` did not make, threads would make at once, where nothing catches it."""
    port, _ = draw("float32", 1500)
    sealed, odd = np.frombuffer(port.tobytes(), np.float32), np.zeros(6001, np.uint8)[1:]
    odd = odd.view(np.float32)
    assert not sealed.flags.writeable and not odd.flags.aligned
    for ours in (port[0], sealed, odd):
        for theirs in (port[0], sealed, odd):
            distance(ours, theirs, crew=Crew(1, compiled=True))
    code = machine_code(port.dtype, port.dtype)
    assert code is not None
    kinds = [tuple(one.dtype for one in types[:2]) for types in code.signatures]  # pyright: ignore[reportFunctionMemberAccess]
    assert len(kinds) == len(set(kinds))
    assert port.flags.writeable


def test_machine_code_asks_the_table_for_its_width():
    """By hand: kept code may be older than the tally; what is beyond it is in its last place."""
    one = np.dtype(np.float32)
    code, counts, lanes = machine_code(one, one), np.zeros((4, 7), np.uint32), np.zeros(5 * LANES)
    blocks = blocks_of(np.full(BLOCK, 1e30, np.float32), np.zeros(BLOCK, np.float32))[0]
    assert code is not None
    code(*blocks, lanes, counts, np.empty(BLOCK, np.uint16), SHIFT, BEFORE)
    assert counts.sum(axis=0).tolist() == [0] * 6 + [BLOCK]


def test_threads_say_nothing_of_infinities(monkeypatch):
    """By law: warnings are errors here, and each thread has its own way with them."""
    monkeypatch.setattr(parts, "PIECE", 100)
    truth = np.append(np.full(300, INF), 1.0)
    with Crew(2, compiled=False) as crew:
        assert distance(truth, truth.copy(), crew=crew).rms_rel == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_change_no_bit(compiled, monkeypatch):
    """By law: however many look, what they find is added up in the order of the pieces."""
    monkeypatch.setattr(parts, "PIECE", 1000)
    port, truth = draw("float32")
    found = []
    for threads in (1, 2, 5):
        with Crew(threads, compiled=compiled) as crew:
            found.append(distance(port, truth, crew=crew))
    assert found[0] == found[1] == found[2]
    assert found[0].histogram == found[1].histogram == found[2].histogram


def test_memory_does_not_grow_with_the_tensor():
    """By law: of a tensor of 16 MB no copy is made."""
    truth = np.ones((1 << 22,), np.float32)
    tracemalloc.start()
    distance(truth, truth)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < truth.nbytes / 2
