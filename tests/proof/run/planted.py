"""The dump of a case, from torch or from our own graph, with or without some of its bugs."""

import re
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import torch

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses, rewritten
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Call, Evaluator, Graph, Tensor
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.proof import ports
from tests.proof.combos import Dump, moved
from tests.proof.registry import named
from tests.proof.run.case import Case
from tests.proof.run.places import Places

FAR = 1e-3  # of the logits' deviation: no rounding in float32
# What no module of transformers hands out.
INSIDE = re.compile(r".*\.(q_rope|k_rope|scores|probs|context|residual|routing)")
COARSE = re.compile(
    r"logits|lm_head|model\.(embed_tokens|norm|layers\.\d+)|transformer\.(wte|drop|ln_f|h\.\d+)"
)


def dump(
    case: Case,
    places: Places,
    bugs: Iterable[str] | None = None,
    *,
    dtype: str | None = None,
    attention: str | None = None,
) -> Dump:
    """Return all that a port dumps: with the case's bugs, dtype and attention, or with others.

    A bug that another dtype does not have is left out there.
    """
    names = case.bugs if bugs is None else [*bugs]
    dtype, attention = dtype or case.dtype, attention or case.attention
    if case.kind == "own":
        graph = places.graph(case.build, case.seed, case.length)
        return from_graph(case, places, graph, rewrites(names, graph), dtype)
    folder, adapter = places.folder(case.build, case.seed)
    planted = [one for one in map(named, names) if dtype == case.dtype or dtype in one.dtypes]
    tokens = places.tokens(case.build, case.seed, case.length, case.rows)
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        port = ports.load(folder, planted, dtype=dtype, attention=attention, adapter=adapter)
        return first_row(ports.dump(port, tokens), case)
    finally:
        torch.set_num_threads(before)


def first_row(taken: Dump, case: Case) -> Dump:
    """Leave the other rows of a batch out; what has no rows of tokens is left as it is."""
    if case.rows == 1:
        return taken
    size = {case.rows: 1, case.rows * case.length: case.length}
    return {name: value[: size.get(len(value), len(value))] for name, value in taken.items()}


def at(taken: Dump, granularity: str) -> Dump:
    """Return what a coarser dump has."""
    if granularity == "modules":
        return taken
    if granularity == "logits":
        return {"logits": taken["logits"]}
    return {name: value for name, value in taken.items() if COARSE.fullmatch(name)}


def from_graph(
    case: Case,
    places: Places,
    graph: Graph,
    calls: Mapping[int, Call],
    dtype: str,
    like: Dump | None = None,
    only: str | None = None,
) -> Dump:
    """Compute every module's output by the oracle's operations, with calls rewritten.

    With `like`, nothing but the logits if those are others. With `only`, one tap alone.
    """
    checkpoint = places.model(case.build, case.seed).checkpoint

    def read(tensor: Tensor) -> object:
        if tensor.stacked:
            return checkpoint.stack(tensor.name)
        if tensor.rows is not None:
            return checkpoint.tensor_at(tensor.name, tensor.rows)
        return checkpoint.tensor(tensor.name)

    run = Evaluator(graph, ops, dtype_named(dtype), {}, read)
    taps = [tap for tap in graph.taps if not INSIDE.fullmatch(tap)]
    with np.errstate(all="ignore"):
        if only is not None:
            return {only: np.asarray(run.target(graph.taps[only], calls))}
        logits = {"logits": np.asarray(run.target(graph.taps["logits"], calls))}
        if like is not None and moved(logits, {"logits": like["logits"]}) > FAR:
            return logits
        return {tap: np.asarray(run.target(graph.taps[tap], calls)) for tap in taps}


def rewrites(names: Collection[str], graph: Graph) -> dict[int, Call]:
    """Return the calls as bugs of our catalogue leave them, everywhere that they can be."""
    found = [one for one in hypotheses(catalogue(), graph) if called(one) in names]
    return rewritten([Atom(one, one.calls) for one in found], graph) or {}


def called(one: Hypothesis) -> str:
    return f"{one.id} ({one.variant})" if one.variant else one.id
