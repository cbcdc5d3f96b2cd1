"""The figures of each tap that `explain` gives are those of `diff --model`. By law: two ways to
the same figures, one through the graph and one through the stages of the model."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import parity
from lockstep.parity.dumps.trace_file import TraceFile
from tests.parity.explaining.ports import model_of, port, prompt

NAME, BUG = "models/untied_float32", "norm-plus-one-missing"


@pytest.mark.parametrize("bugs", [[], [BUG]])
def test_explain_and_diff_say_the_same_of_every_tap(tmp_path, bugs):
    model = model_of(NAME)
    tokens = prompt(model).tolist()
    about = {"format": "lockstep-trace", "version": "1", "tokens": json.dumps(tokens[0])}
    taps = {name: np.ascontiguousarray(value) for name, value in port(NAME, bugs).items()}
    save_file(taps, tmp_path / "right.safetensors", about)
    with TraceFile(tmp_path / "left.safetensors", tokens=tokens[0]) as left:
        model.forward(tokens, trace=left)
    explained = parity.explain(model, tmp_path / "right.safetensors").taps
    compared = parity.diff(
        tmp_path / "left.safetensors", tmp_path / "right.safetensors", model=model
    ).taps
    by_name = {tap.name: tap for tap in compared}
    assert len(explained) >= 25 and any(tap.status == "diverged" for tap in explained) == bool(bugs)
    for tap in explained:
        other = by_name[tap.name]
        assert (tap.op, tap.shape) == (other.op, other.shape)
        assert (tap.status == "diverged") == (other.status == "diverged"), tap.name
        assert tap.rms_rel == pytest.approx(other.rms_rel, rel=0.05, abs=1e-6)
        assert tap.own_error == pytest.approx(other.own_error, rel=1e-6, abs=1e-12)
        assert tap.histogram.zero + sum(tap.histogram.counts) == np.prod(tap.shape)
