"""Which types of GGUF a folder's tensors take. By hand, on configs that say how they are packed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.parity.bench.gguf_types import is_exact, nbytes, said, types_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.witnesses.conftest import MODELS

MLP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"


def copy(folder, form=None):
    checkpoint = open_checkpoint(MODELS / folder)
    types = types_of(checkpoint, form)
    return types, said(types.values(), exact=is_exact(checkpoint, types))


@pytest.mark.parametrize(
    ("folder", "form", "kind", "told"),
    [
        ("tied_bfloat16", None, "BF16", "BF16 copy"),
        ("untied_float32", None, "F32", "F32 copy"),
        ("affine_4_64", None, "Q4_0", "BF16 and Q4_0 copy: not the same weights"),
        ("affine_8_32", None, "Q8_0", "Q8_0 copy: not the same weights"),
        ("affine_5_32", None, "Q5_0", "Q5_0 copy: not the same weights"),
        ("affine_4_64", "F32", "F32", "F32 copy: not the same weights"),
        ("tied_bfloat16", "F32", "F32", "F32 copy"),
        ("tied_bfloat16", "F16", "F16", "F16 copy: not the same weights"),
        ("tied_bfloat16", "Q8_0", "Q8_0", "Q8_0 copy: not the same weights"),
        ("untied_float32", "BF16", "BF16", "BF16 copy: not the same weights"),
    ],
)
def test_matrices_and_what_the_copy_is_called(folder, form, kind, told):
    types, called = copy(folder, form)
    assert (types[MLP], types[NORM], called) == (kind, "F32", told)


def test_rows_that_are_no_whole_number_of_blocks():
    """By hand: of 150 columns no block of 32 is left over."""
    stored = SimpleNamespace(shape=(64, 150), dtype="BF16", packed=False, bits=None)
    checkpoint = cast(Any, SimpleNamespace(names=["a.weight"], stored=lambda name: stored))
    assert types_of(checkpoint, "Q8_0") == {"a.weight": "F32"}
    assert types_of(checkpoint, "BF16") == {"a.weight": "BF16"}


@pytest.mark.parametrize(
    ("kind", "size"),
    [("F32", 768), ("BF16", 384), ("Q4_0", 3 * 2 * 18), ("Q8_0", 3 * 2 * 34)],
)
def test_bytes(kind, size):
    """By hand: three rows of 64 numbers, two blocks a row."""
    assert nbytes((3, 64), kind) == size
