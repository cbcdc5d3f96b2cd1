"""Bits and group size from shapes. By hand: the shapes that MLX gives packed tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lockstep.reference.checkpoint.packed import Packing, infer_packing, is_packed
from lockstep.reference.checkpoint.sharded import SINGLE, Shards

Refuses = Callable[[Callable[[], object], str], str]
Build = Callable[..., Shards]


@pytest.fixture
def build(tmp_path: Path, save_tensors: Callable[..., Path]) -> Build:
    """Return a function that saves a module `m` of 6 rows and 384 columns, as changed."""

    def call(bits: int, group_size: int, scale: Any = np.float32, **changes: Any) -> Shards:
        tensors = {
            "weight": np.zeros((6, 384 * bits // 32), np.uint32),
            "scales": np.zeros((6, 384 // group_size), scale),
            "biases": np.zeros((6, 384 // group_size), scale),
            **changes,
        }
        held = {f"m.{name}": array for name, array in tensors.items() if array is not None}
        save_tensors(tmp_path / SINGLE, held)
        return Shards(tmp_path)

    return call


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("scale", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_packing_is_told_from_its_shapes(
    bits: int, group_size: int, scale: Any, build: Build
) -> None:
    shards = build(bits, group_size, scale)
    assert is_packed(shards, "m")
    assert infer_packing(shards, "m", (6, 384)) == Packing(bits, group_size, "affine")


MINIFLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
BYTES = {"scales": np.zeros((6, 12), np.uint8), "biases": None}


@pytest.mark.parametrize("mode", MINIFLOATS)
def test_scales_that_are_bytes_tell_a_mode_of_tiny_floats(mode: str, build: Build) -> None:
    bits, group_size = MINIFLOATS[mode]
    shards = build(bits, group_size, np.uint8, biases=None)
    assert is_packed(shards, "m")
    found = infer_packing(shards, "m", (6, 384))
    assert found == Packing(bits, group_size, mode)
    assert found.parts == ("weight", "scales")
    assert str(found) == f"{bits} bits in groups of {group_size} by {mode}"


SCALES = np.zeros((6, 6), np.float32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no biases": ({"biases": None}, "missing tensor 'm.biases'"),
    "no weight": ({"weight": None}, "missing tensor 'm.weight'"),
    "byte scales": ({"scales": SCALES.astype(np.uint8)}, "are bytes, which go without biases"),
    "bytes in 64s": (BYTES | {"scales": SCALES.astype(np.uint8)}, "fits no packing with bytes"),
    "3 bits": (
        BYTES | {"weight": np.zeros((6, 36), np.uint32)},
        "[6, 36], [6, 12] fits no",
    ),
    "bytes of 8 in 16s": (
        {
            "weight": np.zeros((6, 96), np.uint32),
            "scales": np.zeros((6, 24), np.uint8),
            "biases": None,
        },
        "[6, 96], [6, 24] fits no packing with bytes for scales of 384 columns",
    ),
    "bytes of rows": (BYTES | {"scales": np.zeros((5, 12), np.uint8)}, "must have 6 rows"),
    "bytes, no weight": (BYTES | {"weight": None}, "missing tensor 'm.weight'"),
    "bytes, signed": (BYTES | {"weight": np.zeros((6, 48), np.int32)}, "must be U32, not I32"),
    "signed bytes": (
        {"scales": np.zeros((6, 12), np.int8), "biases": np.zeros((6, 12), np.int8)},
        "scales and biases must share one of F32",
    ),
    "double scales": ({"scales": SCALES.astype(float)}, "scales and biases must share one of F32"),
    "mixed": ({"biases": SCALES.astype(np.float16)}, "not F32 and F16"),
    "signed": ({"weight": np.zeros((6, 48), np.int32)}, "packed weight must be U32, not I32"),
    "floats": ({"weight": np.zeros((6, 48), np.float32)}, "packed weight must be U32, not F32"),
    "rows": ({"weight": np.zeros((5, 48), np.uint32)}, "[5, 48], [6, 6], [6, 6] must have 6 rows"),
    "rank": ({"scales": SCALES[0]}, "[6, 48], [6], [6, 6] must have 6 rows"),
    "7 bits": ({"weight": np.zeros((6, 84), np.uint32)}, "fits no affine packing of 384 columns"),
    "1 bit": ({"weight": np.zeros((6, 12), np.uint32)}, "fits no affine packing"),
    "no bits": ({"weight": np.zeros((6, 0), np.uint32)}, "fits no affine packing"),
    "half a bit": ({"weight": np.zeros((6, 50), np.uint32)}, "fits no affine packing"),
    "no groups": ({"scales": SCALES[:, :0], "biases": SCALES[:, :0]}, "fits no affine packing"),
    "groups of 96": ({"scales": SCALES[:, :4], "biases": SCALES[:, :4]}, "fits no affine packing"),
    "uneven groups": ({"scales": SCALES[:, :5], "biases": SCALES[:, :5]}, "fits no affine"),
    "fewer biases": ({"biases": SCALES[:, :3]}, "[6, 48], [6, 6], [6, 3] fits no affine packing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, build: Build, refuses: Refuses) -> None:
    changes, core = REFUSED[case]
    shards = build(4, 64, **changes)
    line = refuses(lambda: infer_packing(shards, "m", (6, 384)), core)
    assert "(module 'm')" in line
