"""Scores that are made a block of queries at a time: the same values, and never a whole matrix.

By law: what is blocked is what is not. By hand: which runs are blocked.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts import blocks
from lockstep.parity.excerpts.blocks import Blocks, block_of, by_blocks
from lockstep.reference import ops
from tests.parity import builders
from tests.parity.builders import planted

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = ["gpt2/original", "gemma4/effective", "llama/mistral_window"]
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3]
WITHOUT = ["*.o_proj", "*.c_proj", "logits", "*.mlp.*"]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


@pytest.fixture
def small(monkeypatch):
    """Let a block be of four queries of the models' four heads, or of a few of others."""
    monkeypatch.setattr(blocks, "SCORES", 4 * 4 * len(TOKENS) * 4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [None, [12, 5]])
def test_a_model_by_blocks_gives_what_it_gives_at_once(name, lengths):
    model = reference.load(WITNESSES / name, dtype="float64")
    rows = np.array([TOKENS] if lengths is None else [TOKENS, TOKENS[::-1]])
    found = {}
    for count in (1, 5, 12):
        taps, cache = {}, model.make_cache()
        model_by = by_blocks(model, count)
        for _ in model_by.stages(rows, cache=cache, trace=taps.__setitem__, lengths=lengths):
            pass
        found[count] = taps
    scores = [tap for tap in found[12] if tap.endswith((".scores", ".probs"))]
    assert scores and all(found[1][tap].shape == found[12][tap].shape for tap in scores)
    for tap, right in found[12].items():
        for count in (1, 5) if tap not in scores else ():
            assert np.allclose(found[count][tap], right, rtol=1e-5, atol=1e-6), tap


def test_no_matrix_is_larger_than_a_block(dense, tmp_path, small):
    shapes = []

    def watched(queries, keys, *, scale):
        shapes.append(queries.shape[2])
        return ops.attention_scores(queries, keys, scale=scale)

    port = planted(dense, attention_scores=watched)
    made = trace_run(port, TOKENS, tmp_path / "x", globs=WITHOUT, decode=1)
    assert set(shapes) == {4, 1} and "blocks of 4 queries" in made["blocks"]
    whole = trace_run(port, TOKENS, tmp_path / "y", globs=None, decode=0)
    assert "blocks" not in whole and shapes[-1] == len(TOKENS)
    one, other = open_dump(tmp_path / "x"), open_dump(tmp_path / "y")
    for name in one.shapes:
        if not name.startswith("step"):
            assert np.allclose(one.read(name), other.read(name), rtol=1e-5, atol=1e-5)


def test_a_sketch_is_made_by_blocks_where_scores_are_left_out(dense, tmp_path, small):
    model = reference.load(dense)
    made = trace_run(model, TOKENS, tmp_path / "x", globs=WITHOUT, decode=0, sketched=True)
    assert "blocks of 4 queries" in made["blocks"]


def test_check_by_blocks_judges_as_ever(dense, small):
    tokens = np.array([TOKENS])
    right = check(reference.load(dense), fast.load(dense, backend="cpu", dtype="float32"), tokens)
    assert {tap.status for tap in right.taps} == {"ok"}
    assert "blocks of 4 queries" in right.notes[0]
    bad = planted(dense, softmax=lambda *x, **how: 1.01 * ops.softmax(*x, **how))
    some = check(reference.load(dense), bad, tokens, taps=["*.context", "*.mlp.*"])
    wrong = [tap.name for tap in some.taps if tap.status == "diverged"]
    assert wrong == [f"model.layers.{n}.self_attn.context" for n in (0, 1)]
    whole = check(reference.load(dense), bad, tokens)
    assert not whole.notes and any(tap.name.endswith(".probs") for tap in whole.taps)


def test_which_runs_go_by_blocks(dense, small):
    model = reference.load(dense)
    assert block_of(model, 1, 12) == 4 and block_of(model, 2, 12) == 2
    assert block_of(model, 1, 6) is None
    assert block_of(fast.load(dense, backend="cpu", dtype="float32"), 1, 12) is None
    assert block_of(SimpleNamespace(runs_on="reference"), 1, 12) is None
    assert Blocks(ops, 4).silu is ops.silu
