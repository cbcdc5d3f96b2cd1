"""Plant a bug of the catalogue in a model, and see how far it moves the logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults import Fault
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.numbers import examples
from lockstep.parity.graph import Call, Evaluator, Graph, Tensor, record
from lockstep.parity.judging.metrics import rms
from lockstep.reference import ops
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

TOKENS = 24  # of a prompt that nobody gave
STEPS = 4  # of them, fed one by one, for bugs that only a cache has
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Planted:
    """One variant of a bug in one model.

    `calls` is the number of operations that it changes, `moved` how far the logits are from the
    right ones, relative to these (None if they are no numbers), and `first` the first tap that is
    not bit for bit what it should be (None if all are). `dtype` is what it was computed in: that of
    `DTYPES` in which anything is seen.
    """

    variant: str
    calls: int
    dtype: str
    moved: float | None
    first: str | None


def plant(fault: Fault, model: Model, tokens: np.ndarray | None = None) -> list[Planted]:
    """Plant every variant of a bug that changes this model; `tokens` (B, L) are the prompt.

    Of a class that is a number of any other value, its double is planted.
    What no prefill shows is planted in a run that feeds the last of them in steps.
    It is empty if the model has nothing that the bug could be in.
    Raises: ValueError if so many tokens would have too large a matrix of wrong attention.
    """
    graph = record(model, prompt_for(model) if tokens is None else tokens)
    prefill, decoding = (
        [Evaluator(one, ops, dtype_named(name), {}, reader(model)) for name in DTYPES]
        for one in (graph, decoded(graph))
    )
    found = []
    for variant, rewrite in (fault.variants or examples(fault.id)).items():
        runs = prefill if changed(rewrite, graph) else decoding
        calls = changed(rewrite, runs[0].graph)
        if calls:
            tried = (compared(run, calls, variant) for run in runs)
            found.append(next((one for one in tried if one.first is not None), None)
                         or Planted(variant, len(calls), DTYPES[0], 0.0, None))  # fmt: skip
    return found


def decoded(graph: Graph) -> Graph:
    """Return the graph of a port that fed the last of the tokens in steps, from its cache.

    What is computed is the same; only then is there a cache that could be wrong.
    """
    length = next(graph.shapes[call.number][-1] for call in graph.calls if call.op == "softmax")
    first = max(length - STEPS, 1)
    return replace(graph, steps=tuple(range(first, length)), rewritten={})


def prompt_for(model: Model) -> np.ndarray:
    """Return token ids that show most bugs: drawn, always the same, and not too few."""
    length = min(TOKENS, model.config.max_position_embeddings)
    return np.random.default_rng(0).integers(0, model.config.vocab_size, (1, length))


def reader(model: Model) -> Any:
    """Return what reads the tensors of a graph from the checkpoint."""

    def read(tensor: Tensor) -> Any:
        checkpoint = model.checkpoint
        if tensor.rows is not None:
            return checkpoint.tensor_at(tensor.name, tensor.rows)
        return (checkpoint.stack if tensor.stacked else checkpoint.tensor)(tensor.name)

    return read


def changed(rewrite: Rewrite, graph: Graph) -> dict[int, Call]:
    """Return the calls of a graph that a rewrite changes, by number."""
    new = {call.number: rewrite(call, graph) for call in graph.calls}
    return {number: call for number, call in new.items() if call is not None}


def compared(right: Evaluator, calls: dict[int, Call], variant: str) -> Planted:
    """Run the graph with some calls rewritten, and hold it against the right one."""
    every = tuple(calls.get(call.number, call) for call in right.graph.calls)
    graph = replace(right.graph, calls=every)
    wrong = Evaluator(graph, right.ops, right.dtype, {}, right.read)
    taps = sorted(graph.taps.items(), key=lambda tap: tap[1])
    with np.errstate(all="ignore"):
        first = next((name for name, number in taps if differ(right, wrong, number)), None)
        logits = [run.target(graph.taps["logits"]).astype(np.float64) for run in (right, wrong)]
        moved = float(rms(logits[1] - logits[0]) / rms(logits[0]))
    moved = moved if np.isfinite(moved) else None
    return Planted(variant, len(calls), right.dtype.name, moved, first)


def differ(one: Evaluator, other: Evaluator, number: int) -> bool:
    """Say whether two runs give a value other bits."""
    values = [run.target(number).astype(np.float64) for run in (one, other)]
    return not np.array_equal(*values, equal_nan=True)
