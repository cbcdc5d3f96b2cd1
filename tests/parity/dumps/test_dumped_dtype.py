"""The precision of a dump: as it says, as it is stored, or as its bits show. By hand."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.dumps.dtype import computed_in, dtype_of, narrower
from lockstep.parity.dumps.dump import Dump

EXACT = np.random.default_rng(0).standard_normal((4, 32))
NUMBERS = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)


def dump(values, **about):
    tensors = {"model.embed_tokens": values, "logits": values}
    return Dump(Path("x"), {n: v.shape for n, v in tensors.items()}, tensors.__getitem__, about)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_a_dump_is_judged_as_it_is_stored(name):
    assert computed_in(dump(EXACT.astype(np.dtype(name)))) == (name, None)


def test_what_the_metadata_says_comes_first():
    assert computed_in(dump(NUMBERS, dtype="bfloat16")) == ("bfloat16", None)
    assert computed_in(dump(NUMBERS, dtype="nonsense")) == ("float32", None)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_widened_half_precision_is_seen(name):
    widened = NUMBERS.astype(np.dtype(name)).astype(np.float32)
    assert narrower(widened) == name
    found, why = computed_in(dump(widened))
    assert found == name
    assert f"every value of logits is a {name}" in why
    assert computed_in(dump(widened.astype(np.float64)))[0] == name


def test_bfloat16_in_files_of_float16_is_seen():
    stored = NUMBERS.astype(ml_dtypes.bfloat16).astype(np.float16)
    found, why = computed_in(dump(stored))
    assert found == "bfloat16" and "stored as float16, but every value" in why
    stored[0, 0] = np.nextafter(stored[0, 0], np.float16(9))
    assert computed_in(dump(stored)) == ("float16", None)


def test_widened_single_precision_is_seen():
    found, why = computed_in(dump(NUMBERS.astype(np.float64)))
    assert found == "float32" and "stored as float64, but every value" in why


def test_a_head_alone_in_half_precision_excuses_nothing():
    half = NUMBERS.astype(ml_dtypes.bfloat16)
    for logits in (half, half.astype(np.float32)):
        tensors = {"model.norm": NUMBERS, "logits": logits}
        side = Dump(Path("x"), {n: v.shape for n, v in tensors.items()}, tensors.__getitem__)
        assert computed_in(side) == ("float32", None)


def test_a_few_round_numbers_prove_nothing():
    assert narrower(np.zeros((8, 8), np.float32)) is None
    assert narrower(np.array([1.0, 2.0, 0.5], np.float32)) is None
    one_off = NUMBERS.astype(ml_dtypes.bfloat16).astype(np.float32)
    one_off[0, 0] = np.nextafter(one_off[0, 0], np.float32(9))
    assert narrower(one_off) is None


def test_the_coarser_side_decides():
    exact, half, whole = (dump(EXACT.astype(np.dtype(n))) for n in ("float64", "float16", "int8"))
    assert dtype_of(exact, half, replayed=False)[0] == "float16"
    assert dtype_of(half, exact, replayed=False)[0] == "float16"
    assert dtype_of(exact, exact, replayed=False)[0] == "float64"
    assert dtype_of(whole, whole, replayed=False)[0] == "float32"


def test_where_the_right_side_is_replayed_it_alone_decides():
    exact, half, whole = (dump(EXACT.astype(np.dtype(n))) for n in ("float64", "float16", "int8"))
    assert dtype_of(half, exact, replayed=True)[0] == "float64"
    assert dtype_of(exact, half, replayed=True)[0] == "float16"
    assert dtype_of(half, whole, replayed=True)[0] == "float16"


def test_no_numbers_show_no_precision():
    """Every NaN is one of half precision too."""
    assert narrower(np.full((4, 32), np.nan, np.float32)) is None
