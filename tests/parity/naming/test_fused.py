"""Where the parts of one product lie. By hand."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.naming.fused import Cut, fused_taps, layouts, with_parts

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"


def test_what_a_model_has_apart_may_be_one_product():
    known = {f"{ATTENTION}.q_proj": (1, 5, 8), f"{ATTENTION}.k_proj": (1, 5, 4)}
    known |= {f"{ATTENTION}.v_proj": (1, 5, 4), f"{MLP}.gate_proj": (1, 5, 6)}
    heads = {f"{ATTENTION}.qkv_proj": (1, 5, 16), f"{ATTENTION}.kv_proj": (1, 5, 8)}
    assert fused_taps(known) == heads
    assert fused_taps(known | {f"{MLP}.up_proj": (1, 5, 6)}) == heads | {
        f"{MLP}.gate_up_proj": (1, 5, 12)
    }


@pytest.mark.parametrize(
    ("how", "fused"),
    [
        ("q, k, v", "q0 q1 q2 q3 k0 k1 v0 v1"),
        ("q, v, k", "q0 q1 q2 q3 v0 v1 k0 k1"),
        ("k, q, v", "k0 k1 q0 q1 q2 q3 v0 v1"),
        ("k, v, q", "k0 k1 v0 v1 q0 q1 q2 q3"),
        ("v, q, k", "v0 v1 q0 q1 q2 q3 k0 k1"),
        ("v, k, q", "v0 v1 k0 k1 q0 q1 q2 q3"),
        ("q, k, v, key head by key head", "q0 q1 k0 v0 q2 q3 k1 v1"),
    ],
)
def test_two_key_heads_of_one_number(how, fused):
    columns = layouts(["q", "k", "v"], [4, 2, 2], 2)[how]
    found = np.array(fused.split())[columns]
    assert [*found] == ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"]


def test_gate_and_up():
    found = layouts(["gate", "up"], [2, 2], 2)
    assert {how: columns.tolist() for how, columns in found.items()} == {
        "gate, up": [0, 1, 2, 3],
        "up, gate": [2, 3, 0, 1],
        "gate, up, taking turns": [0, 2, 1, 3],
    }


def test_layouts_that_are_the_same_are_one():
    """With one key head a block is all there is."""
    assert len(layouts(["q", "k", "v"], [4, 2, 2], 1)) == 6


@pytest.mark.parametrize("shape", [(1, 2, 4), (2, 4), (1, 2, 2, 2)])
def test_columns_are_read_from_any_shape_of_the_product(shape):
    x = np.arange(8.0).reshape(shape)
    dump = Dump(Path("port"), {"qkv": shape}, {"qkv": x}.__getitem__)
    found = with_parts(dump, {"qkv (k)": Cut("qkv", np.array([3, 1]), 1, 4)})
    assert found.shapes == {"qkv": shape, "qkv (k)": (1, 2, 2)}
    np.testing.assert_array_equal(found.read("qkv (k)"), [[[3, 1], [7, 5]]])
    np.testing.assert_array_equal(found.parts("qkv (k)").whole(), [[[3, 1], [7, 5]]])
    np.testing.assert_array_equal(found.read("qkv"), x)


def test_a_file_is_read_no_sooner_and_no_more_at_once_than_before():
    """The type of a part is known before its product is read, and others are read by parts."""
    x, read = np.arange(8.0).reshape(1, 2, 4), []

    def parts(name):
        return Parts(x.shape, x.dtype, lambda start, stop, room: x.ravel()[start:stop])

    def whole(name):
        read.append(name)
        return x

    dump = Dump(Path("port"), {"qkv": x.shape, "other": x.shape}, whole, parted=parts)
    found = with_parts(dump, {"qkv (k)": Cut("qkv", np.array([3, 1]), 1, 4)})
    assert found.parts("other").in_file and found.parts("qkv").in_file
    part = found.parts("qkv (k)")
    assert (part.shape, part.dtype, read) == ((1, 2, 2), x.dtype, [])
    assert [part.read(0, 1, None), part.read(1, 4, None).tolist()] == [3, [1, 7, 5]]
    assert read == ["qkv"]


def test_a_shape_that_no_move_leads_to_does_not_fit():
    cut = Cut("qkv", np.array([0]), 1, 4)
    assert cut.fits((1, 3, 4)) and not cut.fits((1, 4, 3)) and not cut.fits((1, 3, 5))
