"""One pass over the graph gives what computing each value alone gives. By law and by count."""

from collections import Counter

import numpy as np
import pytest

from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.side_by_side import side_by_side
from tests.parity.graph.test_evaluator import SAMPLE, louder
from tests.parity.graph.witnesses import run


class Counted(Evaluator):
    """An evaluator that counts what it computes."""

    def compute(self, call, values):
        self.calls = getattr(self, "calls", Counter())
        self.calls[call.number] += 1
        return super().compute(call, values)


def counted(one):
    plain = one.evaluator()
    return Counted(one.graph, plain.ops, plain.dtype, {}, plain.read)


def variants(graph):
    """Rewrite one call of the first layer, and one of the last."""
    layers = [n for tap, n in graph.taps.items() if tap.rpartition(".")[2].isdigit()]
    some = layers[0], layers[-1]
    return [{number: graph.calls[number].followed(louder)} for number in some]


@pytest.mark.parametrize("name", SAMPLE)
def test_every_value_is_what_it_is_alone(name):
    one = run(name)
    alone, wrong = one.evaluator(), variants(one.graph)
    numbers = {*one.graph.taps.values()}
    seen = []
    for number, row in side_by_side(counted(one), numbers, wrong):
        seen.append(number)
        for value, calls in zip(row, ({}, *wrong), strict=True):
            assert np.array_equal(value, alone.target(number, calls))
    assert seen == sorted(numbers)
    assert all(np.any(value != row[0]) for value in row[1:])  # the logits show both


@pytest.mark.parametrize("name", SAMPLE)
def test_no_call_is_computed_twice_and_none_that_no_rewrite_reaches(name):
    one = run(name)
    logits, (early, late) = one.graph.taps["logits"], variants(one.graph)
    pass_ = counted(one)
    list(side_by_side(pass_, {logits}, [early, late]))
    reached = Counter(call.number for calls in (early, late)
                      for call in one.evaluator().reached(logits, calls))  # fmt: skip
    assert pass_.calls == reached + Counter(one.graph.needed([logits], ()))


def test_a_variant_that_takes_a_later_value_is_computed_all_the_same():
    one = run("models/untied_float32")
    taps, calls = one.graph.taps, one.graph.calls
    q_norm, k_norm = (taps[f"model.layers.0.self_attn.{name}_norm"] for name in "qk")
    late = {q_norm: calls[q_norm].with_input(0, calls[k_norm].inputs[0])}
    ((_, (right, wrong)),) = side_by_side(one.evaluator(), {q_norm}, [late])
    assert np.array_equal(wrong, one.evaluator().target(q_norm, late))
    assert not np.array_equal(right, wrong)


def test_a_dumped_value_is_taken_by_what_follows():
    one = run("models/untied_float32")
    taps = one.graph.taps
    norm, q = taps["model.layers.1.input_layernorm"], taps["model.layers.1.self_attn.q_proj"]
    theirs = np.random.default_rng(2).standard_normal(one.graph.shapes[norm])
    held = one.evaluator({norm: theirs})
    found = {number: row[0] for number, row in side_by_side(held, {norm, q})}
    assert {number: value.shape for number, value in found.items()} == {
        number: one.graph.shapes[number] for number in (norm, q)
    }
    assert np.array_equal(found[q], one.evaluator({norm: theirs}).target(q))
    assert np.array_equal(found[norm], one.evaluator().target(norm))
