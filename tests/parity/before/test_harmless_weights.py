"""What is no fault in a port's weights: the same values, conventions, odd files. By hand."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.before.weights import compare_weights
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.before.ports import (
    BFLOAT16,
    FIRST,
    FLOAT32,
    MODELS,
    WITNESSES,
    compared,
    only,
    tensors,
    theirs,
)


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_found_in_the_same_tensors(model, tmp_path):
    report = compared(model, tensors(model), tmp_path)
    assert report.findings == [] and report.compared > 20


@pytest.mark.parametrize("model", [BFLOAT16, FLOAT32, "models/affine_mixed"])
def test_nor_in_an_npz_of_the_same_values(model, tmp_path):
    np.savez(tmp_path / "port.npz", **tensors(model))
    assert compare_weights(open_checkpoint(WITNESSES / model), tmp_path / "port.npz").findings == []


@pytest.mark.parametrize("wider", [np.float32, np.float64])
@pytest.mark.parametrize("model", [BFLOAT16, "models/biased_float16"])
def test_nor_where_they_were_widened(model, wider, tmp_path):
    port = {name: value.astype(wider) for name, value in tensors(model).items()}
    assert compared(model, port, tmp_path).findings == []


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_file_says_nothing(tmp_path_factory, random):
    mixed = list(tensors(BFLOAT16).items())
    random.shuffle(mixed)
    assert compared(BFLOAT16, dict(mixed), tmp_path_factory.mktemp("w")).findings == []


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
def test_rounded_values_are_a_convention(stored, tmp_path):
    port = {name: value.astype(stored) for name, value in tensors(FLOAT32).items()}
    found = only(compared(FLOAT32, port, tmp_path))
    assert found.harmless and found.fault is None and found.kind == "rounded"
    assert len(found.tensors) == len(port) and np.dtype(stored).name in found.text


def test_values_that_ours_were_rounded_from_are_a_convention(tmp_path):
    port, name = tensors(BFLOAT16), FIRST + "self_attn.q_proj.weight"
    port[name] = port[name].astype(np.float32) * np.float32(1 + 2.0**-12)
    found = only(compared(BFLOAT16, port, tmp_path))
    assert (found.kind, found.harmless, theirs(found)) == ("finer", True, [name])
    port[name] = port[name] * np.float32(1 + 2.0**-7)
    assert only(compared(BFLOAT16, port, tmp_path)).kind == "factor"


def test_values_that_were_cut_are_a_convention_too(tmp_path):
    port = tensors(FLOAT32)
    for name, value in port.items():
        port[name] = (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    found = only(compared(FLOAT32, port, tmp_path))
    assert found.harmless and "cut" in found.text


def test_the_layout_of_conv1d_is_a_convention_and_its_exception_is_none(tmp_path):
    port = tensors(FLOAT32)
    for name, value in port.items():
        port[name] = value.T if "_proj" in name else value
    assert only(compared(FLOAT32, port, tmp_path)).harmless
    port[FIRST + "mlp.up_proj.weight"] = port[FIRST + "mlp.up_proj.weight"].T
    kinds = {one.kind: one for one in compared(FLOAT32, port, tmp_path).findings}
    assert theirs(kinds.pop("transposed")) == [FIRST + "mlp.up_proj.weight"]
    assert [*kinds] == ["layout"]


@pytest.mark.parametrize(
    ("model", "end"),
    [(FLOAT32, "weight"), ("models/affine_4_64", "scales"), ("models/affine_4_64", "weight")],
)
def test_a_tensor_that_is_no_weight_is_told_and_the_rest_compared(model, end, tmp_path):
    port = tensors(model)
    port[f"{FIRST}mlp.up_proj.{end}"] = np.arange(5, dtype=np.int32)
    zeroed_name = FIRST + "input_layernorm.weight"
    port[zeroed_name] = np.zeros_like(port[zeroed_name])
    kinds = {one.kind for one in compared(model, port, tmp_path).findings}
    assert kinds == {"unreadable", "not loaded"}


def test_an_axis_more_or_fewer_is_a_convention(tmp_path):
    port = tensors(FLOAT32)
    port["model.norm.weight"] = port["model.norm.weight"][None, :, None]
    port["lm_head.weight"] = port["lm_head.weight"].reshape(-1)
    assert all(one.harmless for one in compared(FLOAT32, port, tmp_path).findings)


ODD = [
    lambda x: x * 0, lambda x: x * np.nan, lambda x: x * np.inf, lambda x: x[:0], lambda x: x[:1],
    lambda x: x[::-1], lambda x: x.T, lambda x: x.reshape(-1)[0], lambda x: x[None],
    lambda x: x.reshape(-1), lambda x: x.astype(np.float64), lambda x: x.astype(np.int8),
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@given(st.data())
def test_whatever_the_file_holds_there_is_a_report(tmp_path_factory, data):
    """By law: nothing is said of what was not touched, and all of it is JSON."""
    port = tensors(FLOAT32)
    chosen = data.draw(st.sets(st.sampled_from(sorted(port)), min_size=1, max_size=5))
    for name in sorted(chosen):
        with np.errstate(all="ignore"):
            port[name] = np.ascontiguousarray(data.draw(st.sampled_from(ODD))(port[name]))
    report = compared(FLOAT32, port, tmp_path_factory.mktemp("odd"))
    json.dumps(report.to_json(), allow_nan=False)
    named = {name for one in report.findings for name, _ in one.tensors if name}
    assert named <= chosen | {"lm_head.weight"}
