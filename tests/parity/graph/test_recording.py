"""A recorded graph is the model: it computes the same, whole or the first tokens alone. By law."""

import numpy as np
import pytest

from lockstep.parity.graph.call import Tensor
from tests.parity.graph.witnesses import MODELS, run
from tests.sampled import sampled

ROWS = (1, 3)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_computes_the_bits_of_its_model(name):
    one, found = run(name), {}
    logits = one.model.forward(one.tokens, trace=found.__setitem__)
    evaluator = one.evaluator()
    assert one.graph.taps.keys() == found.keys()
    assert evaluator.target(one.graph.taps["logits"]).tobytes() == logits.tobytes()
    for tap, number in one.graph.taps.items():
        value = evaluator.target(number)
        assert value.shape == one.graph.shapes[number] == found[tap].shape
        assert np.array_equal(value, found[tap]), tap


@sampled(10, "qwen3_moe/fused")
@pytest.mark.parametrize("name", MODELS)
def test_the_first_rows_alone_are_the_first_rows(name):
    """No token sees a later one. A product of fewer rows may be summed in another order."""
    one = run(name)
    whole = one.evaluator()
    for rows in ROWS:
        few = one.evaluator(rows=rows)
        for number in one.graph.taps.values():
            wanted = few.cut(whole.target(number), one.graph.token_axes[number])
            found = few.target(number)
            assert found.shape == wanted.shape
            assert rows in wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", MODELS)
def test_calls_come_after_what_they_take_and_have_a_place(name):
    graph = run(name).graph
    for call in graph.calls:
        assert all(source < call.number for source in graph.sources(call.number))
        assert call.place or call.layer is not None  # a layer's own place has no name
    for tap, number in graph.taps.items():
        call = graph.calls[number]
        stack = "transformer.h" if tap.startswith("transformer.h.") else "model.layers"
        layer = [stack, str(call.layer)] * (call.layer is not None)
        assert ".".join([*layer, *[call.place] * bool(call.place)]) in call.taps


def test_nothing_is_read_to_record():
    """Every tensor's data is beyond reach, and the graph is the same."""
    from lockstep.parity.graph import record

    one = run("models/untied_float32")

    class Unreadable:
        def __getattr__(self, name):
            if name in ("tensor", "tensor_at", "matrix", "stack"):
                raise AssertionError("a tensor was read")
            return getattr(one.model.checkpoint, name)

    model = type(one.model)(
        Unreadable(), dtype="float32", ops=one.model.ops, adapters=one.model.adapters
    )
    assert record(model, one.tokens).taps == one.graph.taps


def test_a_lookup_reads_only_the_rows_it_asks_for():
    one = run("gemma4/effective")
    asked = []

    def read(tensor: Tensor):
        asked.append(tensor)
        return one.model.checkpoint.tensor_at(tensor.name, tensor.rows)

    lookups = [call for call in one.graph.calls if call.op == "embedding"]
    assert len(lookups) >= 2  # the embedding and that of each layer
    for call in lookups:
        one.evaluator(read=read).target(call.number)
    wanted = tuple(np.unique(one.tokens).tolist())
    assert [tensor.rows for tensor in asked] == [wanted] * len(lookups)
