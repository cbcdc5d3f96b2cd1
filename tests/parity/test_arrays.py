"""Arrays of every framework become NumPy arrays of the same bits. By law."""

import sys
from types import ModuleType, SimpleNamespace

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from lockstep.parity import to_numpy

VALUES = [[0.0, -0.0, 1.5], [float("inf"), float("nan"), -3.25]]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32", "uint8", "bool_"])
def test_mlx_arrays_keep_type_and_bits(name):
    values = VALUES if "float" in name else [[0, 1, 1]]
    kept = np.array(values, np.float32).astype(np.dtype(name.strip("_")))
    found = to_numpy(mx.array(values).astype(getattr(mx, name)))
    assert (found.dtype, found.shape) == (kept.dtype, kept.shape)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(kept))
    np.testing.assert_array_equal(found[~np.isnan(found)], kept[~np.isnan(kept)])


def test_a_lazy_or_turned_array_is_computed():
    x = mx.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(to_numpy((x + 1).T), np.arange(1, 7).reshape(2, 3).T)


def test_numpy_arrays_are_returned_as_they_are():
    array = np.ones(3, ml_dtypes.bfloat16)
    assert to_numpy(array) is array


def test_numbers_and_lists_become_arrays():
    assert to_numpy([[1, 2]]).shape == (1, 2)
    assert to_numpy(2.5) == 2.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_tensors_are_detached_moved_and_read_by_their_bits(monkeypatch, dtype):
    """By hand: a stand-in for torch, so that this test needs no torch."""
    torch = ModuleType("torch")
    torch.bfloat16, torch.uint16, calls = "bfloat16", "uint16", []
    data = np.array([1.0, -2.0], np.float32)

    class Tensor:
        __module__ = "torch"

        def __init__(self, dtype):
            self.dtype = dtype
            self.detach = self.cpu = lambda: calls.append("moved") or self

        def view(self, kind):
            bits = data.astype(ml_dtypes.bfloat16).view(np.uint16)
            return SimpleNamespace(numpy=lambda: bits)

        def numpy(self):
            return data

    monkeypatch.setitem(sys.modules, "torch", torch)
    found = to_numpy(Tensor(dtype))
    assert found.dtype == np.dtype(dtype) and calls == ["moved", "moved"]
    np.testing.assert_array_equal(found.astype(np.float32), data)
