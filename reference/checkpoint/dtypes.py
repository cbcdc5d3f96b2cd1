"""The element types of safetensors and how NumPy holds each."""

from __future__ import annotations

import numpy as np

# Tag in the file: bytes per element, and the type's name in NumPy or in ml_dtypes.
DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "U16": (2, "uint16"),
    "I16": (2, "int16"),
    "U32": (4, "uint32"),
    "I32": (4, "int32"),
    "U64": (8, "uint64"),
    "I64": (8, "int64"),
    "F16": (2, "float16"),
    "F32": (4, "float32"),
    "F64": (8, "float64"),
    "C64": (8, "complex64"),
    "BF16": (2, "bfloat16"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "F8_E8M0": (1, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (1, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (1, "float8_e5m2fnuz"),
}
FLOATS = ("F64", "F32", "F16", "BF16")


def item_size(tag: str) -> int:
    """Return the bytes per element of a tag that is in DTYPES."""
    return DTYPES[tag][0]


def numpy_dtype(tag: str) -> np.dtype:
    """Return the NumPy type of a tag that is in DTYPES. ml_dtypes is imported only if needed."""
    name = DTYPES[tag][1]
    if tag == "BF16" or tag.startswith("F8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name).newbyteorder("<")
