"""Ports made of the graph itself: in their own legal order of sums, with bugs where they are told.

The reference is judged in float64 and in its own orders; these compute in another one, so that what
they dump differs from the reference as a right port does. No torch is needed.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.excerpt import excerpt_of
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.fault import Fault
from lockstep.parity.graph import Evaluator, Graph, record
from lockstep.parity.noise import namespace, of_port, ways
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

WITNESSES = Path(__file__).parents[2] / "witnesses"
INNER = ("q_rope", "k_rope", "scores", "probs", "context", "residual", "routing")
Taps = dict[str, np.ndarray]
Where = Callable[[Any], bool]


@cache
def model_of(name: str) -> Model:
    return reference.load(WITNESSES / name)


def prompt(model: Model, length: int = 20) -> np.ndarray:
    return np.random.default_rng(1).integers(0, model.config.vocab_size, (1, length))


@cache
def graph_of(name: str, length: int = 20) -> Graph:
    return record(model_of(name), prompt(model_of(name), length))


def is_of(level: str, tap: str) -> bool:
    """Say whether a port dumps a tap: all, outputs of modules or layers, or the logits alone."""
    if level == "taps":
        return True
    if level == "modules":
        return tap.rpartition(".")[2] not in INNER
    if level == "layers":
        parent, _, last = tap.rpartition(".")
        return last.isdigit() or parent == "model" or tap == "logits"
    return tap == "logits"


def port(
    name: str,
    bugs: Sequence[Any] = (),
    *,
    dtype: str = "float32",
    level: str = "modules",
    where: Where = lambda call: True,
    length: int = 20,
    rounding: dict[str, Any] | None = None,
) -> Taps:
    """Return what a port with bugs dumps, in a way of rounding that is not the reference's own.
    `rounding` has the operations of another one.

    A bug is an id, `id[variant]`, or a rewrite. `where` says in which calls they are.
    """
    model, graph, kind = model_of(name), graph_of(name, length), dtype_named(dtype)
    ops = ways(kind)[1][0] if rounding is None else of_port(namespace(rounding), kind)
    run = Evaluator(graph, ops, kind, {}, Tensors(model.checkpoint))
    calls = {call.number: call for call in graph.calls}
    for bug in bugs:
        rewrite = rewrite_of(bug) if isinstance(bug, str) else bug
        for number, call in calls.items():
            calls[number] = (where(call) and rewrite(call, graph)) or call
    changed = {number: call for number, call in calls.items() if call is not graph.calls[number]}
    assert changed or not bugs, "the bugs are not in this model"
    with np.errstate(all="ignore"):
        every = {tap: run.target(number, changed) for tap, number in graph.taps.items()}
    return {tap: value for tap, value in every.items() if is_of(level, tap)}


def rewrite_of(bug: str) -> Any:
    name, _, variant = bug.removesuffix("]").partition("[")
    (fault,) = (one for one in catalogue() if one.id == name)
    return fault.variants[variant] if variant else next(iter(fault.variants.values()))


def fault_of(id: str, rewrite: Any) -> Fault:
    """Return a bug of one form, of which nothing is said but its name."""
    words = dict.fromkeys(("wrong", "right", "symptom", "where", "fix"), id)
    return Fault(id=id, **words, evidence=(), variants={"": rewrite})


def dumped(taps: Taps, name: str | None = None, *, length: int = 20, **about: str) -> Dump:
    """Return a dump of these tensors, with the prompt of a model unless none is named."""
    if name is not None:
        about["tokens"] = json.dumps(prompt(model_of(name), length)[0].tolist())
    shapes = {tap: value.shape for tap, value in taps.items()}
    return Dump(Path("port"), shapes, taps.__getitem__, about)


def some_of(name: str, bugs: Sequence[Any] = (), at: str = "5,last:3", **options: Any) -> Dump:
    """Return a dump of what a port with bugs has of some of 20 tokens."""
    taps, excerpt = port(name, bugs, **options), excerpt_of(at, [20])
    some = {tap: excerpt.cut(tap, value) for tap, value in taps.items()}
    return dumped(some, name, positions=json.dumps(excerpt.rows[0]))


def ids(found: Any) -> set[str]:
    return {fault.id for fault in found.faults}


def explained(name: str, taps: Taps, faults: Iterable[Any] | None = None, **options: Any) -> Any:
    from lockstep.parity.explain import explain

    length = options.pop("length", 20)
    return explain(model_of(name), dumped(taps, name, length=length), faults=faults, **options)
