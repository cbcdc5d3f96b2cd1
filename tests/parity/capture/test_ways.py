"""What engines do in a way of their own is thought of first, or not at all. By hand."""

from pathlib import Path

import pytest

from lockstep.parity.capture.ways import sums_in_half, ways_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.faults import catalogue


def ways(**about):
    return ways_of(Dump(Path("port"), {}, dict.__getitem__, about))


def ids(which):
    return [one.id for one in which]


@pytest.mark.parametrize(("library", "later"), [("mlx_lm", True), ("transformers", False)])
def test_libraries_turn_in_the_order_of_the_files(library, later):
    found = ways(library=library, backend="mlx")
    assert found.scales_later is later
    rest = [one for one in catalogue() if one.id != "consistent-qk-permutation"]
    assert len(rest) == len(catalogue()) - 1
    assert ids(found.ordered(catalogue())) == ids(rest)


def test_the_ways_of_llama_cpp_go_first():
    found = ways(backend="llama.cpp").ordered(catalogue())
    own = [one for one in catalogue() if one.family == "llama_cpp"]
    assert own and ids(found[: len(own)]) == ids(own)
    assert sorted(ids(found)) == sorted(ids(catalogue()))


def test_of_others_nothing_is_known():
    for about in ({}, {"backend": "mine"}, {"library": "mine"}):
        assert ways(**about).ordered(catalogue()) == catalogue() and not ways(**about).scales_later


def test_packed_sums_of_mlx_in_half_precision_are_told():
    """On a CPU they are far from the truth, and no engine's rounding explains them."""
    mlx, torch = (
        Dump(Path("port"), {}, dict.__getitem__, {"backend": one}) for one in ("mlx", "torch")
    )
    assert "float16" in sums_in_half(mlx, "float16", packed=True)[0]
    assert sums_in_half(mlx, "float32", packed=True) == []
    assert sums_in_half(mlx, "bfloat16", packed=False) == sums_in_half(
        torch, "float16", packed=True
    )
    assert sums_in_half(torch, "float16", packed=True) == []
