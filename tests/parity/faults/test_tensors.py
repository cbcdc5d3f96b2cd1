"""How matrices are changed on their way in: packed or not, one or a stack, in which order."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.faults.packing import affine
from lockstep.parity.faults.tensors import (
    MISREAD,
    MOVED,
    PACKED,
    UNPACKED,
    Kept,
    Reading,
    Room,
    dense,
    read_as,
    reading,
    renamed,
    reweighted,
)
from lockstep.parity.graph import Call, Conflict, Derived, Graph, Tensor
from lockstep.reference import ops
from lockstep.reference.checkpoint.adapters import Adapted, Adapter
from lockstep.reference.checkpoint.stack import Stack

WEIGHT = np.random.default_rng(13).standard_normal((6, 64)).astype(np.float32)


def order_of(ref) -> list[int]:
    turns = []
    while isinstance(ref, Derived):
        turns.append(ref.change.turn)
        ref = ref.sources[0]
    return turns[::-1]


def test_changes_happen_in_their_turn_whatever_came_first():
    ref = Tensor("w")
    for turn in (PACKED, MOVED, MISREAD, UNPACKED, MISREAD, MOVED):
        ref = read_as(ref, Reading(lambda ops, weight: weight, turn))
    assert order_of(ref) == [MISREAD, MISREAD, UNPACKED, MOVED, MOVED, PACKED]


@pytest.mark.parametrize("turn", [UNPACKED, PACKED])
def test_a_matrix_is_unpacked_and_packed_once(turn):
    first = read_as(Tensor("w"), Reading(lambda ops, weight: weight, turn))
    with pytest.raises(Conflict):
        read_as(first, Reading(lambda ops, weight: weight, turn))


def test_a_stack_is_changed_as_it_is_read():
    asked = []
    stack = Stack((2, 6, 64), lambda index: asked.append(index) or WEIGHT + index)
    changed = Reading(lambda ops, weight: -weight, MOVED)(ops, stack)
    assert asked == [] and changed.shape == stack.shape
    np.testing.assert_array_equal(changed[1], -(WEIGHT + 1))
    assert asked == [1]


def test_dense_is_what_is_multiplied_by():
    """By law: a packed matrix and its dense form give the same product."""
    packed = affine(WEIGHT, bits=4, group_size=32)
    x = np.eye(64)
    np.testing.assert_allclose(
        ops.linear(x, dense(ops, packed, np.float64), None), ops.linear(x, packed, None)
    )
    np.testing.assert_array_equal(dense(ops, WEIGHT), WEIGHT)


def test_dense_has_the_adapter_in_it():
    """By formula: W + s B A."""
    a, b = np.ones((2, 64), np.float32), np.full((6, 2), 0.5, np.float32)
    adapted = Adapted(WEIGHT, Adapter(a, b, 3.0, None))
    np.testing.assert_allclose(dense(ops, adapted), WEIGHT + 3, rtol=1e-6)


def graph_with(**shapes: tuple[int, ...]) -> Graph:
    stored = {name: SimpleNamespace(shape=shape, packed=False) for name, shape in shapes.items()}
    return Graph((), (), (), None, stored)  # pyright: ignore[reportArgumentType]


def linear(name: str) -> Call:
    return Call(0, "linear", (Tensor("x"), Tensor(name), Tensor("bias")), {}, (), "place", 0)


def test_only_matrices_are_changed():
    change = reweighted(lambda ops, weight: weight)
    graph = graph_with(w=(2, 3), bias=(2,))
    found = change(linear("w"), graph)
    assert found is not None and isinstance(found.inputs[1], Derived)
    assert found.inputs[2] == Tensor("bias")
    assert change(linear("elsewhere"), graph) is None


def test_another_tensor_is_read_where_it_fits():
    graph = graph_with(w=(2, 3), other=(2, 3), wide=(2, 4))
    other, wide, none = (reading(lambda name, graph, to=to: to if name == "w" else name)
                         for to in ("other", "wide", "none"))  # fmt: skip
    found = other(linear("w"), graph)
    assert found is not None and found.tensor(1) == "other"
    assert wide(linear("w"), graph) is None
    assert none(linear("w"), graph) is None


def test_a_renamed_tensor_is_changed_as_before():
    reading = Reading(lambda ops, weight: weight, MOVED)
    ref = renamed(Derived(reading, (Tensor("w", stacked=True), Tensor("x"))), "v")
    assert isinstance(ref, Derived) and ref.change is reading
    assert ref.sources == (Tensor("v", stacked=True), Tensor("x"))


def test_kept_changes_are_made_once_a_matrix():
    made = []
    kept = Kept(lambda ops, weight: made.append(1) or weight * 2)
    one, other = WEIGHT.copy(), WEIGHT.copy()
    assert kept(ops, one) is kept(ops, one)
    assert kept(ops, other) is not kept(ops, one)
    assert len(made) == 2


def test_what_is_kept_has_one_room_whatever_made_it():
    """By hand: of three matrices of 8 bytes two have room; the first that was made goes."""
    room, weights = Room(16), [np.zeros(1) for _ in range(3)]
    for key, weight in enumerate(weights):
        room.keep(key, weight, weight + 1)
    held = [room.find(key, weight) is not None for key, weight in enumerate(weights)]
    assert held == [False, True, True] and room.size == 16
    assert room.find(1, weights[2]) is None  # another matrix, whose place in memory is the same


def test_what_is_made_again_takes_the_place_of_what_was_made():
    room, weight = Room(16), np.zeros(1)
    for _ in range(3):
        room.keep("key", weight, weight + 1)
    assert room.size == 8
