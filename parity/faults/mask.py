"""What goes wrong with who may see whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.passes import numbered
from lockstep.parity.faults.rewrites import either, rewrite
from lockstep.parity.faults.tensors import once
from lockstep.parity.graph import Call, Conflict, Derived, Graph

MASK = 1
BY_LOWEST = "blocked by float16's lowest number"
KINDS = "which layers slide"


@dataclass(frozen=True)
class Sight:
    """Which keys a query sees: those at most `ahead` after it and fewer than `window` before it.

    `ahead` None is no end, a negative one stops before the query. `window` counts from the query:
    all keys "near" enough, or those of its own "chunk" of that many, or the "far" ones instead.
    The `first` keys are in every window. A query may see nothing then; if it is `spared`, it sees
    itself and what it should.
    """

    window: int | None
    ahead: int | None = 0
    kind: str = "near"
    inverted: bool = False
    spared: bool = False
    first: int = 0

    def __call__(self, ops: Any, right: Any, queries: Any, keys: Any) -> Any:
        query, key = queries[:, None, :, None], keys[:, None, None, :]
        mask = np.broadcast_to(key >= 0, right.shape)
        if self.ahead is not None:
            mask = mask & (key <= query + self.ahead)
        if self.window is not None:
            mask = mask & (self.within(query, key, self.window) | (key < self.first))
        seen = ~mask if self.inverted else mask
        if not self.spared:
            return seen
        return np.where(seen.any(axis=-1, keepdims=True), seen, mask | (key == query))

    def within(self, query: Any, key: Any, window: int) -> Any:
        if self.kind == "chunk":
            return key >= query // window * window
        return query - key >= window if self.kind == "far" else query - key < window


def sight_of(call: Call, graph: Graph) -> Sight | None:
    """Return who sees whom in a call of softmax, as far as it is rewritten."""
    ref = call.inputs[MASK]
    if isinstance(ref, Derived):
        return ref.change if isinstance(ref.change, Sight) else None
    return Sight(graph.source(call, MASK).options["window"])


def sighted(change: Callable[[Sight, Call, Graph], Sight | None]) -> Rewrite:
    """Rewrite who sees whom; None changes nothing."""

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        before = sight_of(call, graph)
        after = None if before is None else change(before, call, graph)
        if after is None or after == before:
            return None
        source = graph.source(call, MASK)
        right = graph.calls[call.number].inputs[MASK]
        return call.with_input(MASK, Derived(after, (right, *source.inputs)))

    return rewritten


def seeing(**changes: Any) -> Rewrite:
    return sighted(lambda sight, call, graph: replace(sight, **changes))


def off_by(ahead: int, *, spared: bool = False) -> Rewrite:
    """End otherwise than at the query. Raises: Conflict where the mask ends elsewhere already."""

    def changed(sight: Sight, call: Call, graph: Graph) -> Sight:
        if sight.ahead != 0:
            raise Conflict(call.place)
        return replace(sight, ahead=ahead, spared=sight.spared or spared)

    return sighted(changed)


def not_itself(row: str) -> Rewrite:
    """See what is before the query alone; the first sees nothing, which this model has otherwise.

    Its weights are then those of another `masked_row`.
    """

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        new = None if call.options["masked_row"] == row else off_by(-1)(call, graph)
        return None if new is None else new.with_options(masked_row=row)

    return rewritten


def inverted(*, spared: bool) -> Rewrite:
    """See what should be blocked. Where all is, the lowest number of float16 changes no weight."""
    return sighted(
        lambda sight, call, graph: replace(sight, inverted=not sight.inverted, spared=spared)
    )


@rewrite("softmax")
def inverted_in_float16(call: Call, graph: Graph) -> Call | None:
    """The same, where the lowest number of float16 is added to scores that are large beside it."""
    new = inverted(spared=False)(call, graph)
    return None if new is None else new.replaced(outlived)


def outlived(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
    """Share out by what the lowest number of float16 leaves of scores, where nothing is seen.

    Its neighbours are 32 apart, so that scores show in such steps, and what is lower is -inf.
    """
    if getattr(ops, "port_dtype", scores.dtype) != np.float16:
        return ops.softmax(scores, mask, masked_row=masked_row)
    blind = ~np.broadcast_to(mask, scores.shape).any(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        left = (scores.astype(np.float16) + np.finfo(np.float16).min).astype(scores.dtype)
    return ops.softmax(np.where(blind, left, scores), mask | blind, masked_row=masked_row)


def open_in_chunks(call: Call, graph: Graph, *, windows: bool = True) -> Call | None:
    """See all that is fed at once, where something was before: what has a cache needs no mask.

    Without `windows` see all that was before, too.
    """
    if call.op != "softmax":
        return None
    passes = numbered(graph, graph.shapes[call.number][-1])
    together = (passes[:, None] == passes) & (passes[:, None] > 0)
    if together.sum() == np.count_nonzero(passes):  # each later token is fed alone
        return None
    if not windows:
        if graph.source(call, MASK).options["window"] is None:
            return None
        together = (passes[:, None] >= passes) & (together.sum(axis=1) > 1)[:, None]

    def opened(ops: Any, mask: Any) -> Any:
        return mask | together[: mask.shape[-2], : mask.shape[-1]]

    return call.with_changed(MASK, opened)


def windowed(change: Callable[[int], int | None]) -> Rewrite:
    """Change the window of those layers that have one; it is one token wide at least."""

    def changed(sight: Sight, call: Call, graph: Graph) -> Sight | None:
        if sight.window is None:
            return None
        window = change(sight.window)
        return None if window == 0 else replace(sight, window=window)

    return sighted(changed)


@once
def windows_of(graph: Graph) -> list[int | None]:
    """Return the window of every layer, in order."""
    calls = (call for call in graph.calls if call.op == "softmax")
    return [graph.source(call, MASK).options["window"] for call in calls]


def moved(windows: list[int | None], by: int) -> list[int | None]:
    return windows[by:] + windows[:by]


def pattern_moved(by: int) -> Rewrite:
    """See as the layer `by` further on does. Where both ways are the same one, that is forwards."""

    def changed(sight: Sight, call: Call, graph: Graph) -> Sight | None:
        windows = windows_of(graph)
        if call.layer is None or len(windows) <= call.layer:
            return None
        if by < 0 and moved(windows, by) == moved(windows, -by):
            return None
        return replace(sight, window=moved(windows, by)[call.layer])

    return sighted(changed)


@rewrite("softmax")
def never_on_sliding(call: Call, graph: Graph) -> Call | None:
    """Give each kind of layer the window of the other."""
    if None not in windows_of(graph):
        return None
    return either(on_full_layers, windowed(lambda window: None))(call, graph)


def windowed_too(sight: Sight, call: Call, graph: Graph) -> Sight | None:
    window = next((one for one in windows_of(graph) if one is not None), None)
    return replace(sight, window=window) if sight.window is None else None


on_full_layers = sighted(windowed_too)


FAULTS = (
    Fault(
        id="mask-causal-missing",
        wrong="every query sees every key",
        right="a query sees keys at or before its own position",
        symptom="loss looks too good, generated text is poor; the last token is exact",
        where="self_attn.o_proj of the first layer",
        fix="mask keys that come after the query: pass the mask, or is_causal",
        acausal=True,
        variants={
            "nothing is masked": seeing(ahead=None, window=None),
            "in all chunks of a prompt but the first": open_in_chunks,
            "in all these, and no window": partial(open_in_chunks, windows=False),
            "only the window is": sighted(
                lambda sight, call, graph: (
                    None if sight.window is None else replace(sight, ahead=None)
                )
            ),
        },
    ),
    Fault(
        id="mask-causal-off-by-one",
        wrong="a query sees one key too many (j <= i + 1), or not itself (j < i)",
        right="a query sees keys j <= i",
        symptom="the next token leaks in, or the first row is undefined",
        where="self_attn.o_proj of the first layer",
        fix="the diagonal belongs to what is seen: tril(diagonal=0), triu(diagonal=1) for blocking",
        acausal=True,
        variants={
            "one key of the future": off_by(1),
            "not itself": off_by(-1),
            "not itself, and nought where nothing is seen": not_itself("zero"),
            "not itself, and no number where nothing is seen": not_itself("nan"),
            "not itself, but for the first token": off_by(-1, spared=True),
        },
    ),
    Fault(
        id="mask-polarity-inverted",
        wrong="True means blocked where the kernel takes it for seen",
        right="True means seen",
        symptom="garbage: each token sees the future alone",
        where="self_attn.o_proj of the first layer",
        fix="negate the mask, or hand it over as 0 and -inf",
        evidence=("Blaizzy/mlx-vlm#704", "Blaizzy/mlx-vlm#566"),
        acausal=True,
        variants={
            "": inverted(spared=False),
            "but for the query itself: an upper triangle for a lower one": seeing(
                inverted=True, ahead=-1
            ),
            "blocked by a number that a sum in float32 outlives": inverted(spared=True),
            BY_LOWEST: inverted_in_float16,
        },
        dtypes={BY_LOWEST: "float16"},
    ),
    Fault(
        id="mask-swa-off-by-one",
        wrong="the window holds W + 1 or W - 1 keys",
        right="the window holds W keys, the query's own among them: i - j < W",
        symptom="hardly any, and only beyond W tokens",
        where="self_attn.o_proj of sliding layers at token W",
        fix="count the query itself: keys i - W + 1 .. i",
        evidence=(
            "huggingface/transformers#39408",
            "huggingface/transformers#26792",
            "vllm-project/vllm#3385",
        ),
        variants={
            "one key more": windowed(lambda window: window + 1),
            "one key less": windowed(lambda window: window - 1),
        },
    ),
    Fault(
        id="mask-layer-types-ignored",
        wrong="no layer has a window, or every layer has",
        right="sliding layers see W keys, full layers all before them",
        symptom="long prompts only: text drifts beyond W tokens",
        where="self_attn.o_proj of one kind of layers at token W",
        fix="build a mask for each kind in layer_types, and give every layer its own",
        evidence=("ml-explore/mlx-lm#628",),
        rule=KINDS,
        variants={
            "full everywhere": windowed(lambda window: None),
            "sliding everywhere": on_full_layers,
        },
    ),
    Fault(
        id="mask-swa-parity-flipped",
        wrong="the pattern of sliding and full layers begins one layer early or late",
        right="layer i is of kind layer_types[i]",
        symptom="worse text beyond W tokens",
        where="self_attn.o_proj at token W",
        fix="take the kind from layer_types; in a pattern, check which layer is the first full one",
        evidence=("EricLBuehler/mistral.rs#554",),
        rule=KINDS,
        variants={
            "one layer early": pattern_moved(1),
            "one layer late": pattern_moved(-1),
        },
    ),
    Fault(
        id="mask-swa-global-swapped",
        wrong="full layers get the window of sliding ones",
        right="full layers see every key before them",
        symptom="what stands far back in a long prompt is forgotten",
        where="self_attn.o_proj of full layers at token W",
        fix="keep one mask a kind; do not reuse the variable of the first layer",
        evidence=("ml-explore/mlx-lm#465", "ml-explore/mlx-lm#39"),
        rule=KINDS,
        variants={
            "on every layer": on_full_layers,
            "exchanged": never_on_sliding,
        },
    ),
    Fault(
        id="mask-swa-diagonal-sign",
        wrong="of the keys before a query, those W and more away are seen",
        right="of the keys before a query, those fewer than W away are seen",
        symptom="garbage in every sliding layer",
        where="self_attn.o_proj of sliding layers",
        fix="check the sign of the diagonal: keys below -W are cut off, not kept",
        evidence=("huggingface/transformers#41228",),
        acausal=True,
        variants={
            "": sighted(
                lambda sight, call, graph: (
                    None if sight.window is None else replace(sight, kind="far")
                )
            )
        },
    ),
    Fault(
        id="mask-chunked-as-sliding",
        wrong="keys from the start of the query's block of W are seen",
        right="the W keys up to the query are seen",
        symptom="long prompts only: tokens at the start of a block forget all before",
        where="self_attn.o_proj of sliding layers at token W",
        fix="a sliding window moves with each token; blocks are another architecture's",
        evidence=("antonellof/ferrox#255", "AI-Hypercomputer/maxtext#1642"),
        variants={
            "": sighted(
                lambda sight, call, graph: (
                    None if sight.window is None else replace(sight, kind="chunk")
                )
            )
        },
    ),
)
