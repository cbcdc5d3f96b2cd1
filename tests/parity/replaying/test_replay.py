"""What a replay takes from the port, and what it computes itself. By hand."""

from types import SimpleNamespace

import numpy as np

from lockstep.parity.replaying.replay import Replay
from tests.parity.builders import node, stage

FLOAT64, FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)
OPS = SimpleNamespace(
    double=lambda x: 2 * x,
    add=lambda x, y: x + y,
    start=lambda tokens, *, dtype: np.ones(len(tokens), dtype),
)
X = np.array([1.0, 2.0])
DOUBLED = node("double", [2.0, 4.0], X)
SUMMED = node("add", [3.0, 6.0], DOUBLED.output, X)
CHAIN = stage(DOUBLED, SUMMED, doubled=DOUBLED.output, summed=SUMMED.output)


def replayed(port, ops=OPS, graph=CHAIN):
    port = {name: np.array(value) for name, value in port.items()}
    found = Replay(ops, FLOAT64).stage(graph, port)
    return {name: value.tolist() for name, value in found.items()}


def test_without_a_port_the_stage_is_computed_again():
    assert replayed({}) == {"doubled": [2, 4], "summed": [3, 6]}


def test_what_follows_is_computed_from_the_ports_value():
    assert replayed({"doubled": [10.0, 20.0]}) == {"doubled": [2, 4], "summed": [11, 22]}


def test_the_last_value_of_the_port_changes_nothing():
    assert replayed({"summed": [0.0, 0.0]}) == {"doubled": [2, 4], "summed": [3, 6]}


def test_two_names_of_one_value_are_both_reported():
    graph = stage(DOUBLED, SUMMED, one=SUMMED.output, other=SUMMED.output)
    assert replayed({"other": [0.0, 0.0]}, graph=graph) == {"one": [3, 6], "other": [3, 6]}


def test_an_untapped_value_is_carried_as_replayed():
    graph = stage(DOUBLED, SUMMED, summed=SUMMED.output)
    tripled = SimpleNamespace(**vars(OPS) | {"double": lambda x: 3 * x})
    assert replayed({}, ops=tripled, graph=graph) == {"summed": [4, 8]}


def test_the_ports_values_are_taken_in_the_replays_dtype():
    port = {"doubled": np.array([10.0, 20.0], np.float16)}
    assert Replay(OPS, FLOAT64).stage(CHAIN, port)["summed"].dtype == FLOAT64


def test_an_operation_that_is_told_a_dtype_is_told_the_replays():
    begun = node("start", [1.0], [7], dtype=FLOAT32)
    found = Replay(OPS, FLOAT64).stage(stage(begun, begun=begun.output), {})
    assert found["begun"].dtype == FLOAT64


def test_a_later_stage_goes_on_from_the_ports_value():
    replay = Replay(OPS, FLOAT64)
    replay.stage(CHAIN, {"summed": np.array([5.0, 5.0])})
    after = node("double", [6.0, 12.0], SUMMED.output)
    replay.forget_all_but([id(SUMMED.output)])
    assert replay.stage(stage(after, after=after.output), {})["after"].tolist() == [10, 10]


def test_what_is_dead_is_forgotten():
    replay = Replay(OPS, FLOAT64)
    replay.stage(CHAIN, {})
    replay.forget_all_but([id(SUMMED.output), 1])
    assert list(replay.carried) == [id(SUMMED.output)]


def test_replays_share_what_they_compute_alike():
    calls = []
    counting = SimpleNamespace(double=lambda x: calls.append(1) or 2 * x, add=OPS.add)
    other = SimpleNamespace(double=counting.double, add=lambda x, y: x - y)
    known = {}
    first = Replay(counting, FLOAT64).stage(CHAIN, {}, known)
    second = Replay(other, FLOAT64).stage(CHAIN, {}, known)
    assert len(calls) == 1
    assert (first["summed"].tolist(), second["summed"].tolist()) == ([3, 6], [1, 2])


def test_what_they_compute_from_other_values_is_not_shared():
    known = {}
    Replay(OPS, FLOAT64).stage(CHAIN, {}, known)
    port = {"doubled": np.array([10.0, 20.0])}
    assert Replay(OPS, FLOAT64).stage(CHAIN, port, known)["summed"].tolist() == [11, 22]
