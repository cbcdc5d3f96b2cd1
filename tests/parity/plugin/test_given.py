"""What a test may give to the fixture: dumps of every kind, and what is refused. By hand."""

import mlx.core as mx
import numpy as np
import pytest

from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.plugin.given import dump_of, model_of, reference_dump
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import load

VALUES = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def written(folder):
    path = folder / "port.safetensors"
    with TraceFile(path, tokens=[7, 8], dtype="float32") as file:
        file("logits", VALUES)
    return path


@pytest.mark.parametrize("kind", ["path", "text", "dump", "numpy", "mlx", "mlx in bfloat16"])
def test_a_dump_of_every_kind_holds_the_same(tmp_path, kind):
    path = written(tmp_path)
    given = {
        "path": path,
        "text": str(path),
        "dump": dump_of(path),
        "numpy": {"logits": VALUES},
        "mlx": {"logits": mx.array(VALUES)},
        "mlx in bfloat16": {"logits": mx.array(VALUES).astype(mx.bfloat16)},
    }[kind]
    dump = dump_of(given, tokens=(1, 2))
    assert dict(dump.shapes) == {"logits": (1, 2, 3)}
    assert dump.read("logits").tolist() == VALUES.tolist()
    assert dump.tokens == [1, 2]


def test_what_a_dump_says_itself_stays_unless_told_otherwise(tmp_path):
    path = written(tmp_path)
    assert dump_of(path).tokens == [7, 8]
    assert dump_of(path, dtype="bfloat16").about["dtype"] == "bfloat16"
    assert dump_of({"logits": VALUES}).tokens is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "'NoneType': is no dump"),
        ([1, 2], "'list': is no dump"),
        ({}, "holds no tensors"),
        ({"x": np.zeros(2, complex)}, "holds complex128"),
        ({"x": np.array(["a"])}, "holds <U1"),
        ("nowhere.safetensors", "no such file"),
    ],
)
def test_what_is_no_dump_is_refused(given, said):
    with pytest.raises(InputError) as caught:
        dump_of(given)
    assert said in str(caught.value)


def test_a_dtype_that_nothing_is_judged_in_is_refused():
    with pytest.raises(InputError, match="no dtype that is judged"):
        dump_of({"x": VALUES}, dtype="int8")


def test_the_reference_as_a_dump_is_its_trace(plain):
    """By law: the logits are those of a run without a trace."""
    model = load(plain)
    dump = reference_dump(model, [3, 14, 15])
    assert (dump.tokens, dump.about["dtype"]) == ([3, 14, 15], "float32")
    assert np.array_equal(dump.read("logits"), model.forward([[3, 14, 15]]))


def test_a_model_is_taken_as_it_is_or_loaded(plain):
    model = load(plain)
    assert model_of(model) is model
    assert model_of(str(plain)).checkpoint.path == model.checkpoint.path
