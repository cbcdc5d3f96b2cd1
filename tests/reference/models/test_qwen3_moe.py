"""Qwen3-MoE against what transformers computed in float32.

By witness: tests/witnesses/make_qwen3_moe.py.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.model import Model
from tests.witnesses import whole_models
from tests.witnesses.runners import ENGINES, Runner, redeclared

FOLDER = Path(__file__).parents[2] / "witnesses" / "qwen3_moe"
HIDDEN = ("mlp.act_fn",)


@pytest.fixture(params=sorted(path.name for path in FOLDER.iterdir()))
def folder(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.mark.parametrize("engine", ("float64", *ENGINES))
def test_logits(folder, engine, judge):
    whole_models.check_logits(folder, engine, judge)


@pytest.mark.parametrize("engine", ("float64", *ENGINES))
def test_every_module_gives_what_its_hook_saw(folder, engine, judge):
    whole_models.check_modules(folder, engine, judge, hidden=HIDDEN)


def test_cached_chunks_equal_the_prefill(folder, engine, judge):
    whole_models.check_cached(folder, engine, judge)


def test_greedy_continuation(folder, engine):
    whole_models.check_greedy(folder, engine)


def test_prompts_of_unequal_length_go_on_as_if_alone(folder, engine, judge):
    whole_models.check_unequal(folder, engine, judge)


def test_trace_changes_no_bit(folder, engine):
    whole_models.check_trace(folder, engine)


def test_dense_and_sparse_layers_stand_side_by_side(engine):
    """By hand: layer 0 is dense by the list, or because the step is 2."""
    for name in ("separate", "fused", "packed"):
        taps = Runner(engine, FOLDER / name).taps(np.arange(5)[None])
        assert "model.layers.0.mlp.down_proj" in taps and "model.layers.0.mlp.gate" not in taps
        assert "model.layers.1.mlp.experts" in taps and "model.layers.1.mlp.down_proj" not in taps


def test_the_weights_of_a_token(engine):
    """By law: as many experts as the config says, whose weights sum to 1 if it says so."""
    for name, count, normalised in (("separate", 2, True), ("fused", 3, False)):
        taps = Runner(engine, FOLDER / name).taps(np.arange(20)[None])
        routing = taps["model.layers.1.mlp.routing"]
        assert ((routing > 0).sum(-1) == count).all()
        assert (np.abs(routing.sum(-1) - 1) < 1e-6).all() == normalised


def test_norm_topk_prob_changes_the_model(engine, tmp_path):
    """By law: the key is read, and not guessed."""
    tokens = np.arange(20)[None]
    before = Runner(engine, FOLDER / "separate").logits(tokens)

    def unnormed(config):
        config["norm_topk_prob"] = False

    folder = redeclared(FOLDER / "separate", tmp_path / "model", unnormed)
    after = Runner(engine, folder).logits(tokens)
    assert np.abs(before - after).max() > 0.01 * before.std()


@pytest.mark.parametrize("name", ["separate", "fused", "packed"])
def test_the_oracle_reads_one_expert_at_a_time(name, monkeypatch):
    """By hand: no read brings more than one matrix of a stack, and none that no token chose."""
    from lockstep.reference import ops
    from lockstep.reference.checkpoint.checkpoint import Checkpoint

    seen: list[tuple[str, int]] = []
    whole, rows = Checkpoint.tensor, Checkpoint.tensor_rows

    def tensor(self, path):
        assert ".experts." not in path
        return whole(self, path)

    def tensor_rows(self, path, start, stop):
        if ".experts." in path:
            assert stop == start + 1
            seen.append((path, start))
        return rows(self, path, start, stop)

    monkeypatch.setattr(Checkpoint, "tensor", tensor)
    monkeypatch.setattr(Checkpoint, "tensor_rows", tensor_rows)
    taps: dict[str, np.ndarray] = {}
    model = Model(open_checkpoint(FOLDER / name), dtype="float32", ops=ops)
    model.forward([[3]], trace=taps.__setitem__)
    chosen = np.flatnonzero(taps["model.layers.1.mlp.routing"][0, 0]).tolist()
    assert len(seen) == len(set(seen)) == 3 * len(chosen)
    assert {expert for _, expert in seen} == set(chosen)
