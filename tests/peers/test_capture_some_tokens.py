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


def test_a_module_that_norms_heads_first_is_cut_by_tokens():
    """By hand: (B, H, L, D), of five tokens and three heads the last two tokens."""
    attention = torch.nn.Module()
    attention.q_norm = torch.nn.LayerNorm(4)
    layer, root = torch.nn.Module(), torch.nn.Module()
    layer.self_attn = attention
    root.layers = torch.nn.ModuleList([layer])

    def forward(input_ids):
        wide = input_ids[..., None].sin() * torch.arange(1, 13)
        return attention.q_norm(wide.reshape(1, 5, 3, 4).transpose(1, 2))

    root.forward = forward
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with parity.capture.torch(root, at="last:2") as some:
        every = root(ids).detach().numpy()
    (name,) = [name for name in some.shapes if name.endswith("q_norm")]
    assert np.array_equal(some.read(name), every[:, :, 3:])


def test_some_tokens_of_a_batch_are_refused():
    model = MODELS["qwen3"][0]()
    with (
        pytest.raises(InputError, match="needs one prompt"),
        parity.capture.torch(model, at="last:2"),
    ):
        run(model, torch.cat([IDS, IDS]))
