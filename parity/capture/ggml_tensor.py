"""ggml's tensors as llama-cpp-python hands them to a callback: what they are, and their values."""

# llama.cpp is an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError

KINDS = {0: "float32", 1: "float16", 26: "int32", 28: "float64", 30: "bfloat16"}


class Layout(ctypes.Structure):
    """`ggml_tensor` of ggml.h, up to its name."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    ]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph that runs. Its memory is used again for later ones."""

    address: int
    name: str
    op: str
    layout: Layout
    library: Library

    @property
    def shape(self) -> tuple[int, ...]:
        """Four sizes, the innermost last; ggml lists it first."""
        return tuple(self.layout.ne)[::-1]

    def source(self, index: int) -> str:
        """Return the name of an input, empty if there is none."""
        address = self.layout.src[index]
        return self.library.name(address) if address else ""

    def read(self) -> np.ndarray | None:
        """Copy the values out of whatever device they are on; None if it is no plain dtype."""
        kind = KINDS.get(self.layout.type)
        if kind is None:
            return None
        size = self.library.nbytes(self.address)
        raw = np.empty(size, np.uint8)
        self.library.get(self.address, raw.ctypes.data, 0, size)
        # A view may lie in its buffer with gaps.
        strides = tuple(self.layout.nb)[::-1]
        return np.ndarray(self.shape, numpy_dtype(kind), raw, strides=strides).copy()


class Library:
    """The few functions of ggml that reading a tensor takes."""

    def __init__(self, path: Any):
        from llama_cpp._ggml import libggml

        def function(name: str, result: Any, *takes: Any) -> Any:
            return ctypes.CFUNCTYPE(result, *takes)((name, libggml))

        text, size, where = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
        self.name_of = function("ggml_get_name", text, where)
        self.op_of = function("ggml_op_name", text, ctypes.c_int)
        self.nbytes = function("ggml_nbytes", size, where)
        self.get = function("ggml_backend_tensor_get", None, where, where, size, size)
        self.path = path

    def name(self, address: int) -> str:
        return self.name_of(address).decode("utf-8", "replace")

    def tensor(self, address: int) -> Tensor:
        """Raises: InputError if this version of ggml lays tensors out in another way."""
        layout, name = Layout.from_address(address), self.name(address)
        if layout.name.decode("utf-8", "replace") != name or layout.ne[0] < 0:
            what = "this version of llama.cpp lays its tensors out in a way that is not known here"
            raise InputError(self.path, what)
        return Tensor(address, name, self.op_of(layout.op).decode(), layout, self)


def numpy_dtype(kind: str) -> np.dtype:
    if kind != "bfloat16":
        return np.dtype(kind)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
