"""Rounding float32 to half precision, against its definition and numbers worked out by hand."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.precision import NAMES, accumulator, dtype_named, rounded
from tests.draws import wild
from tests.rounding import FORMATS, nearest
from tests.tolerances import assert_close, assert_same_bits

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
HALVES = [BFLOAT16, FLOAT16]
INF, NAN = np.inf, np.nan
TABLE = [  # dtype, value, nearest
    (BFLOAT16, 257, 256),  # ties go to the even neighbour: down
    (BFLOAT16, 259, 260),  # and up
    (BFLOAT16, 257.0001, 258),
    (BFLOAT16, 3.3895314e38, 3.3895314e38),  # the largest
    (BFLOAT16, 3.39e38, 3.3895314e38),
    (BFLOAT16, 3.4e38, INF),
    (BFLOAT16, 2.0**-133, 2.0**-133),  # the smallest subnormal
    (BFLOAT16, 2.0**-134, 0),  # half of it: a tie with 0, which is even
    (BFLOAT16, 1.5 * 2.0**-134, 2.0**-133),
    (BFLOAT16, -(2.0**-149), -0.0),
    (FLOAT16, 2049, 2048),
    (FLOAT16, 2051, 2052),
    (FLOAT16, 65504, 65504),
    (FLOAT16, 65519.99, 65504),
    (FLOAT16, 65520, INF),
    (FLOAT16, -70000, -INF),
    (FLOAT16, 2.0**-24, 2.0**-24),
    (FLOAT16, 2.0**-25, 0),
    (FLOAT16, 3 * 2.0**-25, 2.0**-23),
    (FLOAT16, -1e-30, -0.0),
]


@pytest.mark.parametrize("dtype, value, answer", TABLE)
def test_ties_overflow_and_subnormals(dtype, value, answer):
    """By hand."""
    found = rounded(np.array([value], np.float32), dtype)
    assert_same_bits(found, np.array([answer], np.float64).astype(dtype))
    assert float(found[0]) == float(np.float32(answer))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_boundary_is_a_tie_to_even(dtype):
    """By law: all finite halves, the midpoints between them, and the floats on either side."""
    low = np.arange(0x7F80 if dtype == BFLOAT16 else 0x7C00, dtype=np.uint16).view(dtype)
    low = low.astype(np.float64)
    digits, smallest, _ = FORMATS[dtype.name]
    step = np.ldexp(1.0, np.maximum(np.frexp(low)[1] - 1, smallest) - digits + 1)
    middle = (low + step / 2).astype(np.float32)
    for x in (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(INF))):
        for signed in (x, -x):
            assert_close(rounded(signed, dtype), signed, kind="exact", each=True)


@pytest.mark.parametrize("dtype", HALVES)
@settings(max_examples=200)
@given(x=wild())
def test_any_float_goes_to_the_nearest(dtype, x):
    """By law: the definition of rounding, in float64; signs of zero are kept."""
    found = rounded(x, dtype)
    assert found.dtype == dtype
    assert_close(found, x, kind="exact")
    known = x == x
    np.testing.assert_array_equal(np.signbit(found.astype(np.float32))[known], np.signbit(x)[known])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", [0x7FC00000, 0x7F800001, 0xFF800001, 0x7FBFFFFF, 0xFFFFFFFF])
def test_nan_stays_nan(dtype, pattern):
    """By law: a NaN whose payload is cut off must not become infinity."""
    x = np.array([pattern], np.uint32).view(np.float32)
    assert np.isnan(rounded(x, dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *HALVES])
def test_halves_are_kept_when_widened_and_back(dtype):
    """By law: a wider dtype loses nothing, and rounding twice is rounding once."""
    kept = np.arange(65536, dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):  # of signalling NaN
        kept = kept[np.isfinite(kept)]
    assert len(kept) > 60_000
    assert_same_bits(rounded(kept.astype(np.float64), dtype), kept)
    assert_same_bits(rounded(rounded(kept, dtype), dtype), kept)


def test_the_same_dtype_is_no_copy():
    """By law: rounding to what it is costs nothing."""
    x = np.ones(3, np.float32)
    assert rounded(x, np.dtype(np.float32)) is x


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_carried_wider(name):
    """By hand: float64 for itself, float32 for all others."""
    assert dtype_named(name).name == name
    assert accumulator(dtype_named(name)) == ("float64" if name == "float64" else "float32")


@pytest.mark.parametrize("name", ["float8", "", "int32", "Float32"])
def test_other_dtypes_are_refused(name):
    """By law: no arithmetic that nobody described."""
    with pytest.raises(ValueError, match=f"dtype='{name}', but should be one of float64, float32"):
        dtype_named(name)


def test_bfloat16_is_loaded_only_when_asked_for():
    """By law: NumPy alone is enough for the other dtypes."""
    code = (
        "import sys; sys.modules['ml_dtypes'] = None;"
        "from lockstep.reference.precision import dtype_named; dtype_named('float16')"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@settings(max_examples=100)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_definition_is_that_of_numpy_in_float32(value):
    """By witness: the tests' own rounding, held to NumPy's float64 to float32."""
    for wide in (value, value * 1.0000001, value / 3):
        with np.errstate(all="ignore"):
            assert nearest(wide, np.float32) == np.float64(wide).astype(np.float32)
