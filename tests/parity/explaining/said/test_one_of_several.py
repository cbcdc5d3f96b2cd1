"""An error of one head, or of one expert, is said to be that. By hand: no bug is thought of."""

from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.said import one_head
from lockstep.parity.graph import Call, Graph
from tests.parity.explaining.ports import explained, port

QWEN, MOE = "models/untied_float32", "qwen3_moe/separate"


def shapes(name: str, taps: dict[str, np.ndarray]) -> dict[str, str]:
    return {one.tap: one.shape for one in explained(name, taps, ()).unexplained}


def changed(op: str, change: Any) -> Any:
    """Return a rewrite of what an operation of the second layer gives."""

    def rewrite(call: Call, graph: Graph) -> Call | None:
        return call.followed(change) if (call.op, call.layer) == (op, 1) else None

    return rewrite


def without(*heads: int) -> Any:
    """Leave heads out."""

    def change(ops: Any, x: np.ndarray) -> np.ndarray:
        return x * ~np.isin(np.arange(x.shape[1]), heads)[:, None, None]

    return changed("attention_context", change)


@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("level", ["taps", "modules"])
def test_one_head(head, level):
    found = shapes(QWEN, port(QWEN, [without(head)], level=level))
    (said,) = found.values()
    assert said.startswith(f"one head: head {head} of ")


@pytest.mark.parametrize("level", ["taps", "modules"])
def test_two_heads_are_not_one(level):
    found = shapes(QWEN, port(QWEN, [without(0, 2)], level=level))
    assert found
    assert not any("one head" in said for said in found.values())


@pytest.mark.parametrize(("width", "said"), [(5, False), (4, True)])
def test_heads_that_could_make_nearly_any_error_say_nothing(width, said, monkeypatch):
    """By hand: of eight numbers the first five, or four, are one head's."""
    spans = [np.eye(8)[:, :width], np.eye(8)[:, width:]]
    monkeypatch.setattr(one_head, "heads_of", lambda trial, piece: spans)
    error = np.eye(3, 8)
    found = one_head.one_head(None, None, error)  # pyright: ignore[reportArgumentType]
    assert (found is not None) == said


@pytest.mark.parametrize(
    ("beside", "said"),
    [(1e-9, "one head: head 0 of 2, counted from 0, accounts for all of it"),
     (0.05, "mostly one head: head 0 of 2, counted from 0, has all but 0.2% of the error's power; "
            "others are wrong too")],
)  # fmt: skip
def test_what_is_beside_a_head_is_said_unless_it_is_rounding(beside, said, monkeypatch):
    """By hand: the second head is off by little, and by more than rounding or by less."""
    monkeypatch.setattr(one_head, "heads_of", lambda trial, piece: np.split(np.eye(8), 2, axis=1))
    error = np.concatenate([np.ones((3, 4)), np.full((3, 4), beside)], axis=1)
    found = one_head.one_head(None, None, error, 1e-6)  # pyright: ignore[reportArgumentType]
    assert found == said


def test_of_several_rows_nothing_is_said(monkeypatch):
    """By hand: two rows of four numbers stand side by side, a head is of four."""
    monkeypatch.setattr(one_head, "heads_of", lambda trial, piece: np.split(np.eye(4), 2, axis=1))
    assert one_head.one_head(None, None, np.ones((3, 8))) is None  # pyright: ignore[reportArgumentType]


def of_expert(*lost: int) -> Any:
    """Do not run experts: what they would have said is nought."""

    def change(ops: Any, routing: np.ndarray) -> np.ndarray:
        return routing * ~np.isin(np.arange(routing.shape[-1]), lost)

    def rewrite(call: Call, graph: Graph) -> Call | None:
        here = call.op == "experts" and call.layer == 1
        return call.with_changed(1, change) if here else None

    return rewrite


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_one_expert(level):
    taps = port(MOE, level="taps")
    chosen = taps["model.layers.1.mlp.routing"][0] != 0
    for expert in np.flatnonzero(chosen.any(axis=0)):
        count = int(chosen[:, expert].sum())
        found = shapes(MOE, port(MOE, [of_expert(expert)], level=level))
        (said,) = found.values()
        tokens = "the one token" if count == 1 else f"all {count} tokens"
        assert f"{tokens} that chose expert {expert} " in said


def test_two_experts_are_not_one():
    chosen = port(MOE, level="taps")["model.layers.1.mlp.routing"][0] != 0
    often = np.argsort(-chosen.sum(axis=0))[:2]
    found = shapes(MOE, port(MOE, [of_expert(*often)]))
    assert found
    assert not any("one expert" in said for said in found.values())
