"""The block formats of GGUF, read one weight at a time with Python's whole numbers.

Each function takes the bytes of one block and the number of a weight in it, and returns
(scale, code, offset): the weight is scale * code + offset, all three exact.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

Parts = tuple[Fraction, int, Fraction]
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)  # doubled
NONE = Fraction(0)


def half(block: bytes, place: int) -> Fraction:
    value = np.frombuffer(block[place : place + 2], "<f2")[0]
    return Fraction(float(value)) if np.isfinite(value) else NONE


def nibble(octets: bytes, i: int) -> int:
    return octets[i % 16] >> 4 * (i // 16) & 15


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4_0(b: bytes, i: int) -> Parts:
    return half(b, 0), nibble(b[2:], i) - 8, NONE


def q4_1(b: bytes, i: int) -> Parts:
    return half(b, 0), nibble(b[4:], i), half(b, 2)


def q5_0(b: bytes, i: int) -> Parts:
    top = int.from_bytes(b[2:6], "little") >> i & 1
    return half(b, 0), nibble(b[6:], i) + 16 * top - 16, NONE


def q5_1(b: bytes, i: int) -> Parts:
    top = int.from_bytes(b[4:8], "little") >> i & 1
    return half(b, 0), nibble(b[8:], i) + 16 * top, half(b, 2)


def q8_0(b: bytes, i: int) -> Parts:
    return half(b, 0), signed(b[2 + i]), NONE


def iq4_nl(b: bytes, i: int) -> Parts:
    return half(b, 0), IQ4[nibble(b[2:], i)], NONE


def mxfp4(b: bytes, i: int) -> Parts:
    code = nibble(b[1:], i)
    return Fraction(2) ** (b[0] - 128), E2M1[code % 8] * (-1 if code > 7 else 1), NONE


def two_bits(octets: bytes, i: int) -> int:
    return octets[32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3


def q2_k(b: bytes, i: int) -> Parts:
    packed = b[i // 16]
    return half(b, 80) * (packed & 15), two_bits(b[16:80], i), -half(b, 82) * (packed >> 4)


def q3_k(b: bytes, i: int) -> Parts:
    j, s = i // 16, b[96:108]
    scale = (s[j % 8] >> 4 * (j // 8) & 15) + 16 * (s[8 + j % 4] >> 2 * (j // 4) & 3) - 32
    code = two_bits(b[32:96], i) - (0 if b[i % 32] >> i // 32 & 1 else 4)
    return half(b, 108) * scale, code, NONE


def scale_and_minimum(s: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) + 16 * (s[j - 4] >> 6), (s[j + 4] >> 4) + 16 * (s[j] >> 6)


def four_bits(octets: bytes, i: int) -> int:
    return octets[32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2) & 15


def q4_k(b: bytes, i: int) -> Parts:
    scale, minimum = scale_and_minimum(b[4:16], i // 32)
    return half(b, 0) * scale, four_bits(b[16:], i), -half(b, 2) * minimum


def q5_k(b: bytes, i: int) -> Parts:
    scale, minimum = scale_and_minimum(b[4:16], i // 32)
    code = four_bits(b[48:], i) + 16 * (b[16 + i % 32] >> i // 32 & 1)
    return half(b, 0) * scale, code, -half(b, 2) * minimum


def q6_k(b: bytes, i: int) -> Parts:
    h, r = divmod(i, 128)
    low = b[64 * h + r % 64] >> 4 * (r // 64) & 15
    top = b[128 + 32 * h + r % 32] >> 2 * (r // 32) & 3
    return half(b, 208) * signed(b[192 + i // 16]), low + 16 * top - 32, NONE


BY_LOOP: dict[str, Callable[[bytes, int], Parts]] = {
    **{"Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0},
    **{"IQ4_NL": iq4_nl, "MXFP4": mxfp4},
    **{"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k},
}


def exact(blocks: np.ndarray, name: str, weights: int) -> np.ndarray:
    """Return the weights of blocks (N, bytes) in float64, which holds every one exactly."""
    rows = []
    for block in blocks:
        data = block.tobytes()
        parts = [BY_LOOP[name](data, i) for i in range(weights)]
        rows.append([float(scale * code + offset) for scale, code, offset in parts])
    return np.array(rows)
