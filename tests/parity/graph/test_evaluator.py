"""What a rewrite reaches, what is taken from a dump, and what is kept. By law and by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.graph import Conflict, Evaluator, Value, evaluator
from lockstep.reference import ops
from tests.parity.graph.witnesses import FLOAT32, run

SAMPLE = ("models/untied_float32", "gemma4/effective", "qwen3_moe/separate", "gpt2/variant")


def louder(ops, value):
    return value + np.asarray(1, value.dtype)


def behind(graph, number, target=None, dumped=()):
    """Return by plain search what is computed from a value on the way to another, or at all."""
    here = {*range(len(graph.calls))} if target is None else {*graph.piece(target, dumped).calls}
    found, grown = {number} & here, True
    while grown:
        taken = {n for n in found if n not in dumped}
        more = {n for n in here if graph.sources(n) & taken}
        grown = not more <= found
        found |= more
    return found


@pytest.mark.parametrize("name", SAMPLE)
def test_a_rewrite_reaches_exactly_what_is_behind_it(name):
    graph = run(name).graph
    some = list(graph.taps.values())[:: max(len(graph.taps) // 8, 1)]
    for dumped in ((), some):
        one = Evaluator(graph, ops, FLOAT32, dict.fromkeys(dumped, np.zeros(1)), None)
        for number in some:
            call = graph.calls[number].followed(louder)
            for target in some:
                reached = [c.number for c in one.reached(target, {number: call})]
                assert reached == sorted(behind(graph, number, target, dumped))
                anyhow = one.reached_anyhow(target, {number: call})
                assert sorted(c.number for c in anyhow) == reached


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_not_reached_is_right(name):
    one = run(name)
    whole = one.evaluator()
    layer = next(n for tap, n in one.graph.taps.items() if tap.endswith((".0", "h.0")))
    changed = {layer: one.graph.calls[layer].followed(louder)}
    for number in one.graph.taps.values():
        right, wrong = whole.target(number), whole.target(number, changed)
        assert np.array_equal(right, wrong) == (number not in behind(one.graph, layer))


def test_a_rewrite_may_take_a_value_that_is_computed_later():
    """By hand: the norm of the queries takes the keys, which come after it."""
    one = run("models/untied_float32")
    taps, calls = one.graph.taps, one.graph.calls
    q_norm, k_norm = (taps[f"model.layers.0.self_attn.{name}_norm"] for name in "qk")
    k_proj, keys = taps["model.layers.0.self_attn.k_proj"], calls[k_norm].inputs[0]
    assert q_norm < keys.number
    changed = {q_norm: calls[q_norm].with_input(0, keys)}
    weight = one.model.checkpoint.tensor("model.layers.0.self_attn.q_norm.weight")
    options = dict(calls[q_norm].options)
    right = ops.rms_norm(one.evaluator().target(keys.number), weight, **options)
    assert np.array_equal(one.evaluator().target(q_norm, changed), right)
    changed[k_proj] = calls[k_proj].followed(louder)
    reached = [call.number for call in one.evaluator().reached(q_norm, changed)]
    assert reached[0] == k_proj and reached[-2:] == [keys.number, q_norm]
    wrong = ops.rms_norm(one.evaluator().target(keys.number, changed), weight, **options)
    assert np.array_equal(one.evaluator().target(q_norm, changed), wrong)
    assert not np.array_equal(right, wrong)


def test_a_rewrite_may_take_a_value_that_lies_beside_the_way():
    """By hand: the values' projection takes the keys, which are wrong because of the embedding."""
    one = run("models/untied_float32")
    taps, calls = one.graph.taps, one.graph.calls
    keys, values = (taps[f"model.layers.1.self_attn.{name}_proj"] for name in "kv")
    first = taps["model.embed_tokens"]
    changed = {
        first: calls[first].followed(louder),
        values: calls[values].with_changed(0, lambda ops, x, other: x + other.sum(), Value(keys)),
    }
    found = one.evaluator().target(values, changed)
    whole = one.evaluator()
    x = whole.target(calls[values].inputs[0].number, changed) + whole.target(keys, changed).sum()
    weight = one.model.checkpoint.tensor("model.layers.1.self_attn.v_proj.weight")
    np.testing.assert_array_equal(found, ops.linear(x, weight, None))


def test_dumped_values_are_taken_instead_of_computed():
    one = run("models/untied_float32")
    taps = one.graph.taps
    norm, q = taps["model.layers.1.input_layernorm"], taps["model.layers.1.self_attn.q_proj"]
    theirs = np.random.default_rng(2).standard_normal(one.graph.shapes[norm])
    weight = one.model.checkpoint.tensor("model.layers.1.self_attn.q_proj.weight")
    found = one.evaluator({norm: theirs}).target(q)
    assert np.array_equal(found, ops.linear(theirs.astype(np.float32), weight, None))
    own = one.evaluator({norm: theirs}).target(norm)
    assert np.array_equal(own, one.evaluator().target(norm))  # its own piece is computed


def test_only_the_rows_asked_for_are_taken_from_a_dump():
    one = run("models/untied_float32")
    taps = one.graph.taps
    norm, q = taps["model.layers.1.input_layernorm"], taps["model.layers.1.self_attn.q_proj"]
    theirs = np.random.default_rng(2).standard_normal(one.graph.shapes[norm])
    theirs[:, 4:] = np.nan
    found = one.evaluator({norm: theirs}, rows=4).target(q)
    assert found.shape[1] == 4 and np.isfinite(found).all()


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch):
    one = run("models/untied_float32")
    whole = one.evaluator()
    logits = one.graph.taps["logits"]
    right = whole.target(logits)
    assert whole.size == sum(value.nbytes for value in whole.kept.values()) > 40000
    monkeypatch.setattr(evaluator, "KEPT", 20000)
    few = one.evaluator()
    assert np.array_equal(few.target(logits), right)
    assert few.size == sum(value.nbytes for value in few.kept.values()) <= 20000
    assert 0 < len(few.kept) < len(whole.kept)


def test_what_is_dropped_is_computed_again_only_if_what_follows_is_not_kept(monkeypatch):
    one = run("models/untied_float32")
    few = one.evaluator()
    computed = []
    plain = few.compute
    monkeypatch.setattr(
        few, "compute", lambda call, values: computed.append(call.number) or plain(call, values)
    )
    layer, logits = one.graph.taps["model.layers.0"], one.graph.taps["logits"]
    right = few.target(logits)
    kept = few.kept[layer]
    few.kept.clear()
    few.kept[layer] = kept
    computed.clear()
    assert np.array_equal(few.target(logits), right)
    before = one.graph.piece(layer, ()).calls
    assert {*computed} & {*before} == shared_by(one.graph, before, {layer})


def shared_by(graph, calls, kept):
    """Return by plain search what of some calls later ones take, and what that needs."""
    inside = {*calls}
    asked = {n for n in inside - kept if set(graph.consumers[n]) - inside}
    return {n for one in asked for n in graph.piece(one, kept).calls} - kept


def test_what_is_forgotten_is_what_no_other_call_takes():
    """By hand: the queries are forgotten, the norm that keys and values take is not."""
    one = run("models/untied_float32")
    taps = one.graph.taps
    norm, q = taps["model.layers.1.input_layernorm"], taps["model.layers.1.self_attn.q_proj"]
    whole = one.evaluator()
    whole.target(taps["logits"])
    size = whole.size
    whole.forget([norm, q, *one.graph.consumers[q]])
    assert norm in whole.kept and q not in whole.kept
    assert whole.size == size - whole_bytes(one, q)


def whole_bytes(one, number):
    return one.evaluator().target(number).nbytes


class TestComposition:
    """Several rewrites of one call, on a call of `multiply` by hand."""

    @staticmethod
    def call():
        one = run("gemma4/effective")
        call = next(call for call in one.graph.calls if call.op == "add")
        return one, call

    def value(self, call, values):
        one, _ = self.call()
        return one.evaluator().compute(call, values)

    def inputs(self, call):
        _, plain = self.call()
        first, second = (ref.number for ref in plain.inputs)
        return {first: np.full((1, 2, 3), 5, np.float32), second: np.full((1, 2, 3), 2, np.float32)}

    def found(self, call):
        value = self.value(call, self.inputs(call))
        assert (value == value.flat[0]).all()
        return float(value.flat[0])

    def test_the_right_call(self):
        assert self.found(self.call()[1]) == 7

    def test_a_later_replacement_finds_the_earlier_one_in_the_place_of_the_operation(self):
        call = self.call()[1].replaced(lambda ops, a, b: a * b)  # 10
        assert self.found(call) == 10
        call = call.replaced(lambda ops, a, b: ops.add(a, b) + 1)
        assert self.found(call) == 11
        call = call.replaced(lambda ops, a, b: 2 * ops.add(a, b))
        assert self.found(call) == 22

    def test_other_operations_stay_the_namespace_s_own(self):
        call = self.call()[1].replaced(lambda ops, a, b: a * b)
        call = call.replaced(lambda ops, a, b: ops.scale(ops.add(a, b), by=3.0))
        assert self.found(call) == 30

    def test_inputs_are_changed_before_and_results_after_in_order(self):
        call = self.call()[1].followed(lambda ops, x: x + 1).followed(lambda ops, x: x * 10)
        assert self.found(call) == 80
        call = call.with_changed(0, lambda ops, x: x * 3)
        assert self.found(call) == 180
        call = call.with_changed(0, lambda ops, x: x - 1)  # after the first change: 3 * 5 - 1
        assert self.found(call) == 170

    def test_a_change_may_take_another_value_too(self):
        _, call = self.call()
        call = call.with_changed(0, lambda ops, x, y: x * y, call.inputs[1])
        assert self.found(call) == 12
        assert {*evaluator.values_of(call)} == {ref.number for ref in self.call()[1].inputs}

    def test_options_are_merged(self):
        one, _ = self.call()
        scale = next(call for call in one.graph.calls if call.op == "scale")
        value = {scale.inputs[0].number: np.ones((1, 2), np.float32)}
        doubled = scale.with_options(by=2.0)
        assert (one.evaluator().compute(doubled, value) == 2).all()
        assert doubled.with_options(by=4.0).options["by"] == 4.0 != scale.options["by"]

    def test_a_replacement_over_extended_inputs_is_a_conflict(self):
        _, call = self.call()
        extended = replace(call, inputs=(*call.inputs, call.inputs[0]))
        first = extended.replaced(lambda ops, a, b, c: a + b + c)
        assert self.found(first) == 12
        with pytest.raises(Conflict):
            first.replaced(lambda ops, a, b: a)
