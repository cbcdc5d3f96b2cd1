"""What the head makes where some tokens are kept: no logits of others, and the same numbers."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.arrays import to_numpy
from lockstep.parity.check import check
from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts import whole_run
from lockstep.parity.excerpts.excerpt import excerpt_of
from lockstep.parity.excerpts.head import cut, only
from lockstep.parity.explain import explain
from lockstep.parity.graph import Evaluator
from lockstep.reference.ops import linear
from tests.parity import builders
from tests.sampled import sampled

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3]
WORDS = 41  # nothing else is as wide
BACKENDS = ("reference", "cpu", "mlx")
BEHIND = ("model.norm", "lm_head", "logits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    return builders.checkpoint(folder, vocab_size=WORDS, max_position_embeddings=64)


def loaded(folder, backend):
    return reference.load(folder) if backend == "reference" else fast.load(folder, backend=backend)


def counting(model):
    """Let a model note of how many tokens it makes logits; return the list of these."""
    seen, ops = [], model.ops

    def noting(name):
        def made(*inputs, **options):
            out = getattr(ops, name)(*inputs, **options)
            if getattr(out, "shape", ())[-1:] == (WORDS,):
                seen.append(int(np.prod(out.shape[:-1])))
            return out

        return made

    names = [name for name in dir(ops) if callable(getattr(ops, name)) and name[0] != "_"]
    model.ops = SimpleNamespace(**{name: noting(name) for name in names})
    return seen


def token_by_token(x, weight, bias):
    """Multiply so that no token's sums depend on how many there are, as they do in a BLAS."""
    rows = [linear(row[None, None], weight, bias) for row in x.reshape(-1, x.shape[-1])]
    return np.concatenate(rows, axis=1).reshape(*x.shape[:-1], -1)


def near(found, wanted):
    """Say whether numbers are the same but for the order of sums."""
    return (
        found.shape == wanted.shape and np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trace_makes_logits_of_the_tokens_that_it_keeps(folder, tmp_path, backend):
    """By law: two tokens, and the last one once more; of steps the one that is fed."""
    model = loaded(folder, backend)
    seen = counting(model)
    trace_run(model, PROMPT, tmp_path / "t", globs=None, decode=2, at="last:2")
    assert seen == [3, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_and_a_diff_make_no_others(folder, tmp_path, backend):
    """By law: the reference runs over the tokens alone too, and computes these in a few ways.

    A port takes the step once more where it goes another way while nobody listens.
    """
    right, port = loaded(folder, "reference"), loaded(folder, backend)
    seen, theirs = counting(right), counting(port)
    result = check(right, port, np.array([PROMPT]), decode=1, at="last:2")
    unheard = getattr(port, "has_unheard_way", False)
    assert result.verdict == "parity" and theirs == [3, 1] + [1] * unheard
    assert max(seen) == 3
    seen.clear()
    trace_run(port, PROMPT, tmp_path / "port", globs=None, decode=1, at="last:2")
    assert diff(tmp_path / "port", tmp_path / "port", model=right).verdict == "parity"
    assert max(seen) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_explanation_makes_no_others(folder, tmp_path, monkeypatch, backend):
    """By law: the two tokens, and behind them the step's."""
    model, seen, called = loaded(folder, backend), [], Evaluator.called

    def noting(self, call, *inputs, **options):
        out = called(self, call, *inputs, **options)
        seen.append(out.size // WORDS if out.shape[-1:] == (WORDS,) else 0)
        return out

    monkeypatch.setattr(Evaluator, "called", noting)
    trace_run(model, PROMPT, tmp_path / "port", globs=None, decode=1, at="last:2")
    found = explain(loaded(folder, "reference"), tmp_path / "port")
    assert ([*found.faults], [*found.unexplained]) == ([], [])
    assert max(seen) in (2, 3)


@sampled(4, "cpu-5")
@pytest.mark.parametrize("at", ["last:1", "last:2", "5", "2,first:1", "first:11", "first:12"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_values_are_those_of_all_tokens_cut_afterwards(folder, tmp_path, backend, at):
    """By law; to the bit in the reference, if its products go token by token."""
    model = loaded(folder, backend)
    if backend == "reference":
        model = builders.planted(folder, linear=token_by_token)
    prompts = [PROMPT, PROMPT[::-1][:6], PROMPT[:11]]
    lengths = [len(one) for one in prompts]
    trace_run(model, prompts, tmp_path / "t", globs=None, decode=1, at=at)
    trace_run(model, prompts, tmp_path / "all", globs=None, decode=1)
    some, whole = open_dump(tmp_path / "t"), open_dump(tmp_path / "all")
    excerpt = excerpt_of(at, lengths)
    assert some.shapes.keys() == whole.shapes.keys()
    for name in whole.shapes:
        found, wanted = some.read(name), excerpt.cut(name, whole.read(name))
        if backend == "reference" or not name.endswith(BEHIND):
            assert np.array_equal(found, wanted), name
        else:
            assert near(found, wanted), name
    assert some.about["batch_decoded"] == whole.about["batch_decoded"]


def test_the_parts_of_a_long_prompt_make_none_of_the_others(folder, tmp_path, monkeypatch):
    """By law: of each part its kept tokens, and its last one; the step after it is the same."""
    whole = trace_run(
        loaded(folder, "reference"), PROMPT, tmp_path / "a", globs=None, decode=1, at="5,6"
    )
    monkeypatch.setattr(whole_run, "SCORES", 4 * 4 * 12 * 4)  # four tokens
    model = loaded(folder, "reference")
    seen = counting(model)
    parts = trace_run(model, PROMPT, tmp_path / "b", globs=None, decode=1, at="5,6")
    assert seen == [1, 3, 1, 1]
    assert parts["decoded"] == whole["decoded"]


def test_what_is_asked_for_tells_itself_from_all_tokens():
    """By hand: rows that are filled up; and as many tokens as the prompt has, less one."""
    excerpt = excerpt_of("last:2", [5, 1])
    assert only(excerpt).tolist() == [[3, 4, 4], [0, 0, 0]]
    x = np.arange(12.0).reshape(2, 3, 2)
    assert cut(excerpt, "logits", x).tolist() == [[[0, 1], [2, 3]], [[6, 7], [0, 0]]]
    assert only(excerpt_of("first:2", [3])).tolist() == [[0, 1, 2, 2]]
    assert only(excerpt_of("first:3", [3])).tolist() == [[0, 1, 2, 2]]
    tokens = np.arange(9.0).reshape(1, 3, 3)
    assert np.array_equal(cut(excerpt_of("first:2", [3]), "model.norm", tokens), tokens[:, :2])


def test_heads_as_many_as_tokens_are_no_logits():
    """By hand: three heads, and two tokens with the last one once more."""
    heads = np.arange(3.0 * 5).reshape(1, 3, 5, 1)
    found = cut(excerpt_of("last:2", [5]), "model.layers.0.self_attn.q_rope", heads)
    assert np.array_equal(found, heads[:, :, 3:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_is_asked_for_some_tokens(folder, backend):
    """By law: any tokens of a row, in any order and twice; padded rows too."""
    model = loaded(folder, backend)
    rows = np.array([PROMPT, PROMPT[::-1]])
    (*_, (_, every)) = model.stages(rows, lengths=[12, 5])
    asked = np.array([[11, 0, 3, 3], [4, 0, 0, 2]])
    (*_, (_, some)) = model.stages(rows, lengths=[12, 5], only=asked)
    assert some.shape == (2, 4, WORDS)
    wanted = np.take_along_axis(to_numpy(every), asked[:, :, None], axis=1)
    assert near(to_numpy(some), wanted)
