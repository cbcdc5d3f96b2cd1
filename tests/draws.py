"""What the properties draw: arrays of random numbers by seed, and of arbitrary floats."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lockstep.reference.checkpoint.quantized import QuantizedTensor

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
SHAPE = (1, 2, 3)  # of the arrays of arbitrary floats


def cast(values, dtype) -> np.ndarray:
    """Change the dtype without a word about what overflows."""
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


def normal(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def whole(seed: int, *shape: int, dtype=np.float32, bound: int = 3) -> np.ndarray:
    """Draw whole numbers so small that every order of summing them is exact in every dtype."""
    return cast(np.random.default_rng(seed).integers(-bound, bound + 1, shape), dtype)


def wild(**limits) -> st.SearchStrategy[np.ndarray]:
    """Any float32: subnormal, infinite and NaN unless `limits` say otherwise."""
    return arrays.arrays(np.float32, SHAPE, elements=st.floats(width=32, **limits))


def places(seed: int, *shape: int, stop: int = 12) -> np.ndarray:
    """Draw positions: repeated, unsorted."""
    return np.random.default_rng(seed).integers(0, stop, shape)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack rows of codes as one whole number each: code k begins at bit k * bits."""
    rows = [sum(int(code) << place * bits for place, code in enumerate(row)) for row in codes]
    length = codes.shape[1] * bits // 8
    return np.array([np.frombuffer(row.to_bytes(length, "little"), "<u4") for row in rows])


def packed_matrix(seed: int, rows: int, columns: int, *, bits: int, group: int, dtype=np.float32):
    """Return a random packed matrix, and its exact float64 values from the codes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**bits, (rows, columns))
    scales = cast(rng.standard_normal((rows, columns // group)) / 2**bits, dtype)
    biases = cast(rng.standard_normal((rows, columns // group)), dtype)
    wide, offset = (np.repeat(part.astype(np.float64), group, 1) for part in (scales, biases))
    packed = QuantizedTensor(pack(codes, bits), scales, biases, bits, group, "affine")
    return packed, wide * codes + offset
