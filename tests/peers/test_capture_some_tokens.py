"""Captures of torch modules of which some tokens are kept. By loop: rows of the whole capture."""

import numpy as np
import pytest
import torch

from lockstep import parity
from lockstep.reference.checkpoint.errors import InputError
from tests.peers.test_capture_peers import IDS, MODELS, captured, run
from tests.witnesses import build


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_some_tokens_are_kept_and_the_rest_is_not(name):
    """By loop: rows of the whole capture."""
    model = MODELS[name][0]()
    whole = captured(model)
    with parity.capture.torch(model, at="0,last:2") as some:
        run(model, IDS)
        run(model, IDS[:, :1])
    length = IDS.shape[1]
    assert some.about["positions"] == f"[0, {length - 2}, {length - 1}]"
    rows = [0, length - 2, length - 1]
    for tap in whole.shapes:
        every = whole.read(tap)
        axis = next((n for n in (0, 1) if every.shape[n] == length), None)  # experts have others
        assert np.array_equal(some.read(tap), every if axis is None else every.take(rows, axis)), (
            tap
        )
    assert some.shapes["step.1/logits"][1] == 1
    assert parity.diff(whole, some).compared > 20


def test_some_tokens_of_a_batch_are_refused():
    model = MODELS["qwen3"][0]()
    with (
        pytest.raises(InputError, match="needs one prompt"),
        parity.capture.torch(model, at="last:2"),
    ):
        run(model, torch.cat([IDS, IDS]))
