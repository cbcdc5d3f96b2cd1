"""Matrices of queries by keys that are put off. By law: each value is what it is made at once."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator, by_queries
from lockstep.parity.graph.side_by_side import side_by_side
from lockstep.parity.planting.in_model import changed, plant
from lockstep.reference import ops
from tests.parity.faults.test_every_entry import MODELS, case
from tests.parity.graph.witnesses import FLOAT32, LENGTH, run
from tests.sampled import sampled

SAMPLE = ("models/untied_float32", "llama/mistral_window", "gemma4/effective", "gpt2/variant")
COUNT = 3  # queries of a block
MATRIX = {*by_queries.MAKE, by_queries.AVERAGE}
STEPPED = [name for name in MODELS if "+" in name]  # in steps, and in batches


@pytest.fixture
def small(monkeypatch):
    """Put every matrix off, and let a block have three queries at most."""
    monkeypatch.setattr(by_queries, "LARGE", 0)
    monkeypatch.setattr(by_queries, "at_once", lambda shape: min(COUNT, shape[-2]))
    monkeypatch.setattr(by_queries.by_queries, "__defaults__", (by_queries.at_once, None))


def watched(shapes):
    """Return operations that note how many queries scores are made of."""

    def scores(queries, keys, *, scale):
        shapes.append(queries.shape[2])
        return ops.attention_scores(queries, keys, scale=scale)

    names = {name: getattr(ops, name) for name in ops.__all__}
    return SimpleNamespace(**names | {"attention_scores": scores})


def evaluator(name, shapes, **more):
    one = run(name)
    read = Tensors(one.model.checkpoint)
    return Evaluator(one.graph, watched(shapes), FLOAT32, {}, read, **more)


def close(one, other):
    return np.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_by_queries_gives_what_it_gives_at_once(name, small):
    one, shapes = run(name), []
    here = evaluator(name, shapes)
    right = {}
    one.model.forward(one.tokens, trace=right.__setitem__)
    for tap, number in one.graph.taps.items():
        found = here.target(number)
        assert isinstance(found, np.ndarray) and close(found, right[tap]), tap
    assert max(shapes) == COUNT


def doubled(ops, value):
    return value + value


@pytest.mark.parametrize("name", SAMPLE[:2])
@pytest.mark.parametrize("op", ["attention_scores", "softmax", "attention_context", "causal_mask"])
def test_a_wrong_matrix_is_wrong_by_queries_too(monkeypatch, small, name, op):
    """Another operation, another input or another option, alone and beside the right one."""
    one = run(name)
    last = one.graph.taps["logits"]
    call = next(call for call in one.graph.calls if call.op == op)
    flipped = op == "causal_mask"
    wrong = [
        call.followed((lambda ops, mask: ~mask) if flipped else doubled),
        call.with_changed(0, lambda ops, x: x + 1) if flipped else call.with_changed(0, doubled),
    ]
    if op == "softmax":  # a mask that counts places in the matrix
        wrong.append(call.with_changed(1, lambda ops, mask: np.tri(LENGTH, dtype=bool)[::-1]))
    by_some = [evaluator(name, []).target(last, {call.number: each}) for each in wrong]
    rows = side_by_side(evaluator(name, []), [last], [{call.number: each} for each in wrong])
    ((_, beside),) = rows
    monkeypatch.undo()
    for each, found, other in zip(wrong, by_some, beside[1:], strict=True):
        truth = one.evaluator().target(last, {call.number: each})
        assert close(found, truth) and close(other, truth)
        assert not close(truth, beside[0])


def wrong_attention(graph):
    """Every variant of the catalogue that touches a matrix of queries by keys, with its calls."""
    for fault in catalogue():
        for variant, rewrite in fault.variants.items():
            calls = changed(rewrite, graph)
            if any(graph.calls[number].op in MATRIX for number in calls):
                yield f"{fault.id} {variant}", calls


@sampled(1, "llama/mistral_window+3")
@pytest.mark.parametrize("name", STEPPED)
def test_every_bug_of_attention_is_what_it_is_at_once(monkeypatch, name):
    """Those that count places in the matrix, mix queries, or give it other axes too."""
    here = case(name)
    last, every = here.graph.taps["logits"], dict(wrong_attention(here.graph))
    kind = np.dtype(np.float64)

    def logits():
        run = Evaluator(here.graph, ops, kind, {}, here.read)
        with np.errstate(all="ignore"):
            return {bug: run.target(last, calls) for bug, calls in every.items()}

    right = logits()
    monkeypatch.setattr(by_queries, "at_once", lambda shape: min(7, shape[-2]))
    monkeypatch.setattr(by_queries.by_queries, "__defaults__", (by_queries.at_once, None))
    found = logits()
    odd = [bug for bug, value in found.items()
           if not np.allclose(value, right[bug], rtol=1e-6, atol=1e-9, equal_nan=True)]  # fmt: skip
    assert every and not odd


@pytest.mark.parametrize("op", sorted(MATRIX))
def test_what_is_wrong_and_too_large_is_refused(monkeypatch, small, op):
    """The right one is not; by hand: a matrix of 4 heads of 20 by 20 in float64 is larger."""
    one = run(SAMPLE[0])
    last = one.graph.taps["logits"]
    call = next(call for call in one.graph.calls if call.op == op)
    monkeypatch.setattr(by_queries, "MOST", 8 * LENGTH * LENGTH - 1)
    here = evaluator(SAMPLE[0], [])
    here.target(last)
    wrong_ones = [
        call.replaced(lambda ops, *inputs, **options: getattr(ops, op)(*inputs, **options)),
        call.followed(lambda ops, value: value),
    ]
    if op in ("softmax", by_queries.AVERAGE):  # their first input is such a matrix
        wrong_ones.append(call.with_changed(0, lambda ops, value: value))
    for wrong in wrong_ones:
        with pytest.raises(ValueError, match=r"needs a whole matrix of .* GB in float64"):
            here.target(last, {call.number: wrong})
    here.target(last, {call.number: call.with_options()})


def test_a_bug_that_is_planted_is_refused_as_well(monkeypatch):
    one = run(SAMPLE[0])
    bug = next(fault for fault in catalogue() if fault.id == "softmax-wrong-axis")
    monkeypatch.setattr(by_queries, "MOST", 0)
    with pytest.raises(ValueError, match="needs a whole matrix"):
        plant(bug, one.model, one.tokens)


def test_blocks_without_their_queries_are_no_matrix():
    late = by_queries.Later("softmax", (1, 1, 8, 8), lambda start, stop: np.ones((1, 1, 1, 8)), ())
    with pytest.raises(ValueError, match="softmax of some queries"):
        by_queries.joined(late, 4)


def test_what_is_put_off_is_as_large_as_what_it_holds(small):
    """By hand: queries and keys of 4 by 2 numbers, and a mask; what is held twice counts once."""
    made = np.zeros((1, 1, 4, 2))
    scores = by_queries.by_queries("attention_scores", lambda q, k: q @ k.mT, [made, made])
    mask = np.ones((1, 1, 4, 4), bool)
    probs = by_queries.by_queries("softmax", lambda one, mask: one, [scores, mask])
    assert (scores.nbytes, probs.nbytes) == (made.nbytes, made.nbytes + mask.nbytes)


def test_only_queries_that_are_seen_are_made(small):
    """Where tokens do not meet again behind it; else all are."""
    name, shapes = SAMPLE[0], []
    graph = run(name).graph
    contexts = [n for tap, n in graph.taps.items() if tap.endswith(".context")]
    whole = evaluator(name, []).target(contexts[-1])
    given = {n: evaluator(name, []).target(n) for tap, n in graph.taps.items()
             if tap.endswith((".q_rope", ".k_rope", ".v_proj"))}  # fmt: skip
    here = evaluator(name, shapes, seen=[2, LENGTH - 1])
    here.dumped = given
    found = here.target(contexts[-1])
    assert close(found[:, [2, -1]], whole[:, [2, -1]]) and not found[:, :2].any()
    assert shapes == [1, 1]
    first = evaluator(name, [], seen=[2]).target(contexts[0])
    assert close(first, evaluator(name, []).target(contexts[0]))


def test_small_matrices_are_made_at_once():
    """By hand: 128 MB in float64, and blocks of 32 MB."""
    assert by_queries.at_once((1, 16, 1024, 1024)) == 1024
    assert by_queries.at_once((1, 16, 2048, 2048)) == 128
    assert by_queries.at_once((1, 1 << 20, 2, 1 << 10)) == 1
