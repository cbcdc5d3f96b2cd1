"""A dump is read when it is asked for, and little of it is kept. By law."""

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining import dumped
from tests.parity.explaining import ports

MODEL = "llama/mistral_window"


def counted(taps, bugs=()):
    """Return a dump of these taps, and how often each was read."""
    times = dict.fromkeys(taps, 0)

    def read(name):
        times[name] += 1
        return taps[name].copy()

    whole = ports.dumped(taps, MODEL)
    return Dump(whole.path, whole.shapes, read, whole.about), times


def test_little_is_kept_and_what_is_found_is_the_same(monkeypatch):
    taps = ports.port(MODEL, ["rope-pairing-swapped"])
    most, sizes = max(tap.nbytes for tap in taps.values()), []
    keep = dumped.Dumped.keep

    def watched(self, number, value):
        keep(self, number, value)
        assert self.size == sum(one.nbytes for one in self.kept.values())
        sizes.append(self.size)

    monkeypatch.setattr(dumped, "KEPT", most)
    monkeypatch.setattr(dumped.Dumped, "keep", watched)
    dump, times = counted(taps)
    found = explain(ports.model_of(MODEL), dump)
    assert ports.ids(found) == {"rope-pairing-swapped"}
    assert max(sizes) <= most and max(times.values()) > 2


def test_values_put_in_the_place_of_others_stay_and_do_not_reach_the_first():
    taps = ports.port(MODEL)
    dump, _ = counted(taps)
    graph = ports.graph_of(MODEL)
    number = graph.taps["model.norm"]
    sides = dumped.Joined(dump, {tap: tap for tap in taps}, 0)
    first = dumped.Dumped(sides, graph, {number: "model.norm"})
    other = first | {number: np.zeros(3)}
    assert np.array_equal(first[number], taps["model.norm"]) and not other[number].any()
    assert number in other and [*other] == [number] and len(first) == 1
    other[7] = np.ones(2)
    assert 7 in other and 7 not in first


def test_moves_are_counted_once_however_often_a_value_is_read(monkeypatch):
    monkeypatch.setattr(dumped, "KEPT", 0)
    taps = {tap: value[0] for tap, value in ports.port(MODEL).items()}
    dump, _ = counted(taps)
    found = explain(ports.model_of(MODEL), dump)
    assert f"batch axis added in {len(taps)} tensors" in found.conventions
