"""How a port rounds is found one operation after another, until nothing more is."""

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lockstep.parity.explaining.conventions import rounding
from lockstep.parity.explaining.conventions.rounding import (
    agreement,
    convention_of,
    evaluator,
    telling,
)
from lockstep.parity.explaining.searching.runs import Kept
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Graph
from lockstep.parity.graph.evaluator import KEPT
from lockstep.parity.noise import half
from lockstep.parity.noise.conventions import wide_until_shares
from lockstep.reference.ops.softcap import softcap
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import explained, model_of, port

ONE: Any = ({"norm": 0}, {"norm": 1})
OTHER: Any = ({"rope": 0}, {"rope": 1})


@pytest.mark.parametrize(
    ("shares", "best"),
    [
        ({(0, 0): 0.5, (1, 0): 0.4, (0, 1): 0.6, (1, 1): 0.9}, (1, 1)),  # one beside the other
        ({(0, 0): 0.5, (1, 0): 0.6, (0, 1): 0.4, (1, 1): 0.5}, (1, 0)),
        ({(0, 0): 1.0}, (0, 0)),  # nothing better can be found, and nothing is tried
    ],
)
def test_what_shows_beside_another_choice_alone_is_found(monkeypatch, shares, best):
    """By hand: two operations that round in two ways each."""

    monkeypatch.setattr(rounding, "choices", lambda dtype: (ONE, OTHER))
    monkeypatch.setattr(rounding, "concerns", lambda *given: True)
    monkeypatch.setattr(rounding, "evaluator", lambda trial, taken: taken)
    monkeypatch.setattr(rounding, "agreement", lambda run, trial, pieces: shares[run])
    trial: Any = SimpleNamespace(dtype=np.dtype(np.float16), kept=Kept())
    assert convention_of(trial, []) == (best, shares[best])


def test_what_was_found_out_of_the_same_calls_is_not_asked_again(monkeypatch):
    """By hand: other calls are, and so is what has none."""
    asked: list[Any] = []
    monkeypatch.setattr(rounding, "agreement", lambda *given: asked.append(given) or 1.0)
    monkeypatch.setattr(rounding, "evaluator", lambda trial, taken: taken)
    monkeypatch.setattr(rounding, "concerns", lambda *given: True)
    trial: Any = SimpleNamespace(dtype=np.dtype(np.float16), kept=Kept())
    piece: Any = SimpleNamespace(target=1)
    for calls in ({5: ONE}, {5: OTHER}, {}):
        before = len(asked)
        found = convention_of(trial, [(piece, dict(calls))])
        assert convention_of(trial, [(piece, dict(calls))]) == found
        assert len(asked) == before + 1


def routed(unsure: list[bool] | None) -> Any:
    """Return a trial of three tokens, of which a router may have sent some elsewhere, and what it
    was asked.
    """
    graph = SimpleNamespace(shapes={1: (1, 3, 2)}, token_axes={1: (1,)})
    graph.along_tokens = partial(Graph.along_tokens, graph)
    trial: Any = SimpleNamespace(dtype=np.dtype(np.float16), graph=graph, kept=Kept(), asked=[])
    found = None if unsure is None else np.array([unsure])
    trial.unsure = lambda piece, calls: trial.asked.append(calls) or found
    trial.port = lambda target: np.ones((1, 3, 2))
    return trial


@pytest.mark.parametrize(
    ("unsure", "share"),
    [
        ([False, True, False], 1.0),
        ([True, False, False], 1 / 2),
        ([False, True, True], 2 / 3),  # most of them: then all tell
        (None, 2 / 3),
    ],
)
def test_a_token_that_rounding_may_send_to_another_expert_tells_nothing(monkeypatch, unsure, share):
    """By hand: the bits of the second of three tokens are others."""
    value = np.array([[[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]])
    monkeypatch.setattr(rounding, "bits", lambda run, piece, calls, dtype: value)
    piece: Any = SimpleNamespace(target=1)
    assert agreement(None, routed(unsure), [(piece, {})]) == pytest.approx(share)  # pyright: ignore[reportArgumentType]


def test_which_tokens_tell_is_found_out_once_of_the_same_calls():
    """By hand."""
    trial, piece = routed([False, True, False]), SimpleNamespace(target=1)
    for calls in ({}, {5: ONE}, {}, {5: ONE}):
        found = telling(trial, piece, calls)  # pyright: ignore[reportArgumentType]
        assert found.tolist() == [[[True], [False], [True]]]
    assert trial.asked == [{}, {5: ONE}]


@pytest.mark.parametrize(("size", "kept"), [(KEPT // 4, 4), (2 * KEPT, 1)])
def test_a_way_of_computing_is_made_once_as_long_as_there_is_room(monkeypatch, size, kept):
    """By count: of many ways those stay that were asked for last, and one that fills all room."""
    made: list[Any] = []
    trial = Trial(cast(Any, None), None, np.dtype(np.float16), {}, cast(Any, None))
    monkeypatch.setattr(
        Trial, "evaluator", lambda *given: made.append(SimpleNamespace(size=size)) or made[-1]
    )
    rest = (0,) * 6
    ways = [(0, 0, 0, 0, 0, place, 0, 0) for place in range(3)] + [(0, 1, *rest), (1, 0, *rest)]
    for way in ways:
        assert evaluator(trial, way) is evaluator(trial, way)
    assert len(made) == len(ways)
    assert [*trial.kept.conventions] == ways[-kept:]
    trial.forget()
    assert evaluator(trial, ways[-1]) is made[-1] is not made[-2]


@pytest.mark.parametrize("step", [True, False])
def test_logits_too_small_for_their_cap_are_capped_however_it_rounds(step):
    """By law: ports that round the cap once, or at each step, though it hardly moves a logit."""
    name = "gemma4/dense"
    taps, cap = port(name, dtype="bfloat16"), model_of(name).config.final_logit_softcapping
    taps["lm_head"] = (taps["lm_head"].astype(np.float32) / 10).astype(taps["lm_head"].dtype)
    taps["logits"] = (half.stepwise_softcap if step else softcap)(taps["lm_head"], cap=cap)
    found = explained(name, taps)
    assert not found.faults and [one.tap for one in found.unexplained] == ["lm_head"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("name", ["llama/mistral_window", "gpt2/variant"])
def test_scores_in_float32_and_shares_in_half_precision_are_no_bug(name, level, dtype):
    """By law: nothing but what stands behind the softmax is rounded, as ports in JAX have it."""
    ops = wide_until_shares(dtype_named(dtype))
    found = explained(name, port(name, dtype=dtype, level=level, rounding=ops))
    assert (found.verdict, found.dtype) == ("clean", dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_tables_in_half_precision_are_no_bug_of_a_port_that_is(level, dtype):
    """By law: the turn itself is made in float32, and rounded once."""
    name, ops = "llama/mistral_window", {"rope": half.half_table_rope}
    found = explained(name, port(name, dtype=dtype, level=level, rounding=ops))
    assert (found.verdict, found.dtype) == ("clean", dtype)


def test_a_bug_whose_shapes_the_model_lacks_gives_no_bit_of_the_port():
    """By hand: beside another bug, positions have another length than the heads."""

    def target(number, calls):
        if calls:
            raise ValueError("shapes that this model does not have")
        return np.ones((1, 2, 3), np.float32)

    port, piece = np.ones((1, 2, 3), np.float16), cast(Any, SimpleNamespace(target=4))
    trial: Any = SimpleNamespace(
        dtype=port.dtype, port=lambda number: port, kept=Kept(), unsure=lambda *given: None
    )
    run: Any = SimpleNamespace(target=target)
    assert agreement(run, trial, [(piece, {})]) == 1.0
    assert agreement(run, trial, [(piece, {5: ONE})]) == 0.0
    assert agreement(run, trial, [(piece, {}), (piece, {5: ONE})]) == 0.5
