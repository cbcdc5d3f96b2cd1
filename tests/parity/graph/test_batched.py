"""Several rewrites computed together give what each gives alone. By law, and by count."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.graph import batched
from lockstep.parity.graph.batched import at_once
from tests.parity.graph.test_evaluator import SAMPLE, louder
from tests.parity.graph.witnesses import run


@pytest.fixture
def computed(monkeypatch):
    """Note of each operation that is computed how many rows its batch has."""
    rows = []

    def spied(one):
        compute = one.compute

        def noted(call, values):
            value = compute(call, values)
            rows.append(value.shape[:1])
            return value

        monkeypatch.setattr(one, "compute", noted)
        return one

    return spied, rows


def rewrites(graph):
    """Return one louder call each, of floats, from the first to the last."""
    some = [n for n in graph.taps.values() if graph.batched[n]]
    return [{number: graph.calls[number].followed(louder)} for number in some]


@pytest.mark.parametrize("name", SAMPLE)
def test_each_value_is_what_its_rewrite_gives_alone(name, computed):
    one = run(name)
    spied, rows = computed
    logits, some = one.graph.taps["logits"], rewrites(one.graph)
    alone, together = one.evaluator(), spied(one.evaluator())
    found = at_once(together, logits, some)
    assert len(some) > 24
    for calls, value in zip(some, found, strict=True):
        right = alone.target(logits, calls)
        assert value is not None and value.shape == right.shape and value.dtype == right.dtype
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())
        assert np.any(value != alone.target(logits))
    assert len(rows) < sum(len(alone.reached(logits, calls)) for calls in some) / 2
    assert max(rows) > (batched.FEW,)


def test_first_rows_alone_are_computed_if_they_are_asked_for():
    one = run("gemma4/effective")
    logits, some = one.graph.taps["logits"], rewrites(one.graph)
    alone, few = one.evaluator(rows=3), one.evaluator(rows=3)
    for value, calls in zip(at_once(few, logits, some), some, strict=True):
        assert value is not None and value.shape[1] == 3
        np.testing.assert_allclose(value, alone.target(logits, calls), rtol=1e-3, atol=1e-3)


def test_what_a_port_dumped_is_taken_by_all_of_them():
    one = run("models/untied_float32")
    taps = one.graph.taps
    norm, target = taps["model.layers.1.input_layernorm"], taps["model.layers.1"]
    theirs = np.random.default_rng(2).standard_normal(one.graph.shapes[norm])
    held = one.evaluator({norm: theirs})
    some = [calls for calls in rewrites(one.graph) if {*calls} <= held.before(target)]
    assert len(some) > batched.FEW
    for value, calls in zip(at_once(held, target, some), some, strict=True):
        np.testing.assert_allclose(value, held.target(target, calls), rtol=1e-3, atol=1e-3)


def loudest(ops, value):
    """A wrong operation that looks at all rows of a batch."""
    return value / np.abs(value).max()


@pytest.mark.parametrize("wrong", [louder, loudest])
def test_a_call_that_many_rewrite_alike_is_what_it_is_alone(wrong, computed):
    one = run("models/untied_float32")
    spied, rows = computed
    taps, calls = one.graph.taps, one.graph.calls
    shared, logits = calls[taps["model.layers.1.input_layernorm"]].followed(wrong), taps["logits"]
    early = [calls for calls in rewrites(one.graph) if max(calls) < shared.number]
    some = [{**calls, shared.number: shared} for calls in early]
    assert len(some) > batched.ALIKE
    alone = one.evaluator()
    for value, calls in zip(at_once(spied(one.evaluator()), logits, some), some, strict=True):
        assert value is not None
        np.testing.assert_allclose(value, alone.target(logits, calls), rtol=1e-3, atol=1e-3)
    several = len(some) if wrong is louder else 1
    assert rows.count((1,)) and (several,) in rows


class TestWhatIsLeftToBeComputedAlone:
    """By hand: nothing is said of these, and of the others all the same."""

    def others(self, graph):
        return rewrites(graph)[: 2 * batched.FEW]

    def left(self, special):
        one = run("models/untied_float32")
        logits, others = one.graph.taps["logits"], self.others(one.graph)
        found = at_once(one.evaluator(), logits, [*others, special(one.graph)])
        assert all(value is not None for value in found[:-1])
        return found[-1]

    def norm(self, graph):
        return graph.calls[graph.taps["model.layers.1.input_layernorm"]]

    def test_another_shape(self):
        def wider(graph):
            call = self.norm(graph)
            return {call.number: call.followed(lambda ops, x: np.concatenate([x, x], -1))}

        assert self.left(wider) is None

    def test_another_dtype(self):
        def wider(graph):
            call = self.norm(graph)
            return {call.number: call.followed(lambda ops, x: x.astype(np.float64))}

        assert self.left(wider) is None

    def test_shapes_that_the_model_does_not_have(self):
        def impossible(graph):
            call = self.norm(graph)
            return {call.number: call.followed(lambda ops, x: x.reshape(7, -1, 11))}

        assert self.left(impossible) is None

    def test_values_that_are_taken_before_they_are_computed(self):
        def early(graph):
            taps, calls = graph.taps, graph.calls
            q_norm, k_norm = (taps[f"model.layers.0.self_attn.{name}_norm"] for name in "qk")
            return {q_norm: calls[q_norm].with_input(0, calls[k_norm].inputs[0])}

        assert self.left(early) is None

    def test_a_few_of_large_values_and_batches(self, monkeypatch):
        one = run("models/untied_float32")
        logits, some = one.graph.taps["logits"], rewrites(one.graph)
        unknown = replace(one.graph, batched=())
        assert at_once(replace(one.evaluator(), graph=unknown), logits, some) == [None] * len(some)
        monkeypatch.setattr(batched, "BYTES", 1000)
        assert at_once(one.evaluator(), logits, some) == [None] * len(some)


def test_what_no_rewrite_reaches_is_right():
    one = run("models/untied_float32")
    taps = one.graph.taps
    layer, some = taps["model.layers.0"], rewrites(one.graph)[-12:]
    whole = one.evaluator()
    found = at_once(whole, layer, some)
    assert found and all(np.array_equal(value, whole.target(layer)) for value in found)
