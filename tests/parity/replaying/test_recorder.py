"""The graph of a stage, on operations small enough to write down. By hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.replaying.recorder import Recorder
from tests.parity import builders

OPS = SimpleNamespace(double=lambda x: 2 * x, plus=lambda x, *, more: x + more)


def test_calls_are_noted_in_order_with_what_went_in_and_came_out():
    recorder, x = Recorder(OPS), np.array([1.0, 2.0])
    y = recorder.double(x)
    z = recorder.plus(y, more=3)
    first, second = recorder.take().nodes
    assert (first.op, first.inputs[0] is x, first.options, first.output is y) == (
        "double",
        True,
        {},
        True,
    )
    assert (second.op, second.inputs[0] is y, second.options) == ("plus", True, {"more": 3})
    assert second.output is z
    assert z.tolist() == [5, 7]


def test_taps_hold_the_very_value():
    recorder = Recorder(OPS)
    y = recorder.double(np.array([1.0]))
    recorder.tap("y", y)
    recorder.tap("same", y)
    taps = recorder.take().taps
    assert list(taps) == ["y", "same"]
    assert taps["y"] is taps["same"] is y


def test_taking_a_stage_begins_the_next():
    recorder = Recorder(OPS)
    recorder.double(np.array([1.0]))
    taken = recorder.take()
    recorder.plus(np.array([1.0]), more=1)
    assert [node.op for node in taken.nodes] == ["double"]
    assert [node.op for node in recorder.take().nodes] == ["plus"]
    assert recorder.take().nodes == []


def test_an_unknown_operation_is_refused():
    with pytest.raises(AttributeError, match="halve"):
        Recorder(OPS).halve  # noqa: B018  (looking it up is what is tested)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_recording_changes_no_bit(tmp_path, dtype):
    reference, _ = builders.pair(builders.checkpoint(tmp_path))
    model = type(reference)(reference.checkpoint, dtype=dtype, ops=reference.ops)
    recorder = Recorder(reference.ops)
    recorded = type(reference)(reference.checkpoint, dtype=dtype, ops=recorder)
    plain = model.forward(builders.TOKENS)
    assert recorded.forward(builders.TOKENS, trace=recorder.tap).tobytes() == plain.tobytes()
    assert recorder.take().taps["logits"].tobytes() == plain.tobytes()


@pytest.mark.parametrize("backend", ["cpu", "mlx"])
def test_tracing_changes_no_bit(tmp_path, backend):
    _, port = builders.pair(builders.checkpoint(tmp_path), backend)
    traced = {}
    plain = np.array(port.forward(builders.TOKENS))
    logits = np.array(port.forward(builders.TOKENS, trace=traced.__setitem__))
    assert logits.tobytes() == plain.tobytes()
    assert np.array(traced["logits"]).tobytes() == plain.tobytes()
