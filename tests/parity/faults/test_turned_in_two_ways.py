"""Two bugs of one rope are both there, whichever of them the catalogue has first. By loops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses, rewritten
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.norms import TurnedAndNormed
from lockstep.parity.faults.rotations import backwards
from lockstep.parity.graph import Graph
from lockstep.parity.graph.stretched import ByToken, rope
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.parity.faults.planted import FLOAT32, World, world

NAME = "models/tied_bfloat16"  # queries and keys are normed, then turned
QUERIES = "model.layers.0.self_attn.q_rope"
ORDER, TWICE, TABLES, SIGN = (
    "qk-norm-rope-order", "rope-applied-twice", "rope-cos-sin-half", "rope-sign-flipped",
)  # fmt: skip
VARIANTS = {ORDER: "", TWICE: "", TABLES: "in bfloat16", SIGN: ""}
Turn = Callable[[np.ndarray], np.ndarray]


def as_they_are(table: np.ndarray) -> np.ndarray:
    return table


def in_bfloat16(table: np.ndarray) -> np.ndarray:
    return table.astype(np.float32).astype(dtype_named("bfloat16")).astype(np.float64)


def turned(angles: np.ndarray, table: Callable[[np.ndarray], np.ndarray] = as_they_are) -> Turn:
    """Turn number j of each head with the one half a head behind it."""

    def turn(heads: np.ndarray) -> np.ndarray:
        cos, sin = table(np.cos(angles)), table(np.sin(angles))
        half = heads.shape[-1] // 2
        out = np.empty_like(heads)
        for j in range(half):
            x, y = heads[..., j], heads[..., j + half]
            out[..., j] = x * cos[:, j] - y * sin[:, j]
            out[..., j + half] = y * cos[:, j] + x * sin[:, j]
        return out

    return turn


def again(turn: Turn, heads: np.ndarray) -> np.ndarray:
    return turn(turn(heads))


def normed(heads: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    return heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + eps) * gain


def both(graph: Graph, *ids: str) -> Any:
    """Return what the queries of the first layer are with two bugs in their rope."""
    faults = [fault for fault in catalogue() if fault.id in ids]
    number = graph.taps[QUERIES]
    found = [one for one in hypotheses(faults, graph) if one.variant == VARIANTS[one.id]]
    return rewritten([Atom(one, frozenset([number])) for one in found], graph)


def parts(one: World) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Return the heads as they were projected, the gain and eps of their norm, and the angles."""
    run, graph = one.evaluator(), one.graph
    call = graph.calls[graph.taps[QUERIES]]
    norm = graph.source(graph.source(call, 0), 0)
    raw = run.target(norm.inputs[0].number).swapaxes(1, 2).astype(np.float64)  # pyright: ignore[reportAttributeAccessIssue]
    gain = np.asarray(one.read(norm.inputs[1]), np.float64)  # pyright: ignore[reportArgumentType]
    frequencies = run.target(call.inputs[2].number)  # pyright: ignore[reportAttributeAccessIssue]
    angles = np.arange(raw.shape[2])[:, None] * np.asarray(frequencies, np.float64)
    return raw, gain, norm.options["eps"], angles


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((TWICE, TABLES), lambda a, norm: lambda x: again(turned(a, in_bfloat16), norm(x))),
        ((SIGN, TABLES), lambda a, norm: lambda x: turned(-a, in_bfloat16)(norm(x))),
        ((ORDER, SIGN), lambda a, norm: lambda x: norm(turned(-a)(x))),
        ((ORDER, TWICE), lambda a, norm: lambda x: norm(turned(2 * a)(x))),
        ((ORDER, TABLES), lambda a, norm: lambda x: norm(turned(a, in_bfloat16)(x))),
    ],
    ids=["twice, by rounded tables", "backwards, by rounded tables", "backwards, before the norm",
         "twice, before the norm", "by rounded tables, before the norm"],
)  # fmt: skip
def test_both_bugs_are_there(ids, expected):
    one = world(NAME)
    raw, gain, eps, angles = parts(one)
    calls = both(one.graph, *ids)
    found = one.evaluator().target(one.graph.taps[QUERIES], calls)
    right = expected(angles, lambda heads: normed(heads, gain, eps))(raw)
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-6)


def test_both_bugs_are_there_where_each_token_has_frequencies_of_its_own():
    """As after a step of a prompt that stretches: the same for all of them, here."""
    random = np.random.default_rng(4)
    heads = random.standard_normal((1, 2, 5, 6)).astype(FLOAT32)
    frequencies, gain = np.float32([1.0, 0.3, 0.1]), random.random(6).astype(FLOAT32)
    positions = np.arange(5)[None]
    turn = ByToken(rope).around(TurnedAndNormed(1e-6)).around(backwards)
    found = turn(ops, heads, positions, np.tile(frequencies, (5, 1)), gain, factor=1.0)
    angles = np.arange(5)[:, None] * frequencies.astype(np.float64)
    right = normed(turned(-angles)(heads.astype(np.float64)), gain, 1e-6)
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("order", "norms", "there"),
    [("q", "q", False), ("q", "qk", False), ("q", "k", True), ("q", "qki", True)],
)
def test_a_norm_that_is_done_behind_the_turn_hides_what_is_wrong_with_the_one_before(
    order, norms, there
):
    """A bug of such norms alone cannot be there: it would be seen in no case, or in one of two.
    What is wrong with all norms can, as far as it is seen in others.
    """
    graph = world(NAME).graph
    number = {
        "q": graph.taps["model.layers.0.self_attn.q_norm"],
        "k": graph.taps["model.layers.0.self_attn.k_norm"],
        "i": graph.taps["model.layers.0.input_layernorm"],
    }
    wrong = "norm-root-missing"
    by_id = {one.id: one for one in hypotheses(catalogue(), graph) if one.id in (ORDER, wrong)
             and one.variant == ""}  # fmt: skip
    turned_first = Atom(by_id[ORDER], frozenset([graph.taps[QUERIES]]))
    bad = Atom(by_id[wrong], frozenset(number[one] for one in norms))
    assert (rewritten([turned_first, bad], graph) is not None) is there


def test_a_bug_that_another_one_leaves_nothing_to_change_is_no_contradiction():
    """Of heads that stand still none is stretched: without yarn's factor they are the same."""
    one = world("llama/qwen2_yarn")
    still, factor = "rope-missing-on-layer-kind", "rope-yarn-attn-factor"
    here = frozenset([one.graph.taps[QUERIES]])
    found = hypotheses([fault for fault in catalogue() if fault.id in (still, factor)], one.graph)
    atoms = {bug.id: Atom(bug, here) for bug in found if bug.variant in ("", "never")}
    alone, both = (rewritten([atoms[id] for id in ids], one.graph)
                   for ids in ([still], [still, factor]))  # fmt: skip
    assert both is not None and rewritten([atoms[factor]], one.graph) is not None
    (number,) = here
    run = one.evaluator()
    np.testing.assert_array_equal(run.target(number, both), run.target(number, alone))
