"""Other norms, and norms at other places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import (
    NORMS,
    changed_input,
    either,
    instead,
    is_at,
    only,
    rewrite,
    skipped,
)
from lockstep.parity.faults.tensors import renamed
from lockstep.parity.graph import Call, Derived, Graph, Tensor, Value, again
from lockstep.parity.graph.call import nested
from lockstep.parity.graph.stretched import rope
from lockstep.reference.precision import accumulator, rounded

QK = (r"self_attn\.[qk]_norm",)
OF_HEADS = (*QK, r"self_attn\.v_norm", r"router\.norm")
FINAL = (r"model\.norm", r"transformer\.ln_f")
FIRST, SECOND = r"input_layernorm|ln_1", r"post_attention_layernorm|ln_2"
BEFORE = (FIRST, r"pre_feedforward_layernorm(_2)?", r"router\.norm")
AFTER = (r"post_attention_layernorm", r"post_feedforward_layernorm.*", "post_per_layer_input_norm")
RMS = ("rms_norm",)
LAYER = ("layer_norm",)


def sandwiched(call: Call, graph: Graph) -> bool:
    """Whether this model normalises what attention and the MLP return, as Gemma does."""
    return "model.layers.0.pre_feedforward_layernorm" in graph.taps


def plain(call: Call, graph: Graph) -> bool:
    return not sandwiched(call, graph)


def has_heads(call: Call, graph: Graph) -> bool:
    return call.op in ("rms_norm", "unit_norm") and graph.shapes[call.number][-2] > 1


def twice(name):
    def wrong(ops, x, *weights, eps):
        norm = getattr(ops, name)
        return norm(norm(x, *weights, eps=eps), *weights, eps=eps)

    return instead(name, wrong)


def plus(by):
    """Give the norm a gain that is off by a whole number."""
    return changed_input("rms_norm", 1, lambda ops, gain: gain.astype(np.float32) + np.float32(by))


def once_rounded(ops, x, gain, *, eps):
    """Multiply by the gain before anything is rounded."""
    work = accumulator(x.dtype)
    return rounded(ops.rms_norm(x.astype(work), gain.astype(work), eps=eps), x.dtype)


def centred(ops, x, gain=None, *, eps):
    gain = np.ones(x.shape[-1], x.dtype) if gain is None else gain
    return ops.layer_norm(x, gain, np.zeros_like(gain), eps=eps)


def not_centred(ops, x, gain, bias, *, eps):
    return ops.rms_norm(x, gain, eps=eps) + rounded(bias, x.dtype)


def not_centred_nor_biased(ops, x, gain, bias, *, eps):
    return ops.rms_norm(x, gain, eps=eps)


def of_all_heads(ops, x, *gain, eps):
    """Normalise all heads (..., H, D) of a token as one row, whatever the norm is."""
    rows = x.reshape(*x.shape[:-2], -1)
    norm = ops.rms_norm if gain else ops.unit_norm
    return norm(rows, *(np.tile(one, x.shape[-2]) for one in gain), eps=eps).reshape(x.shape)


@rewrite("linear", "lm_head")
def normed_again(call: Call, graph: Graph) -> Call | None:
    """Normalise what goes into the head once more: the last norm's own result is right."""
    norm = graph.source(call, 0)
    if norm.op not in NORMS or not is_at(norm.place, FINAL):
        return None

    def again_normed(ops, x, *weights):
        return getattr(ops, norm.op)(x, *weights, eps=norm.options["eps"])

    return call.with_changed(0, again_normed, *norm.inputs[1:])


@rewrite("rope")
def normed_after(call: Call, graph: Graph) -> Call | None:
    """Turn the heads as they were projected, and normalise them then."""
    norm = norm_before(call, graph)
    if norm is None:
        return None
    raw, gain = norm.inputs
    bare = Derived(lambda ops, heads: ops.heads_first(heads), (raw,))
    turned = call.replaced(TurnedAndNormed(norm.options["eps"]))
    return replace(turned, inputs=(bare, *call.inputs[1:], gain))


@dataclass(frozen=True)
class TurnedAndNormed:
    """A rope with a norm behind it; what else is wrong with the rope stays in front of the norm."""

    eps: float
    turn: Callable[..., Any] = rope

    def __call__(
        self, ops: Any, x: Any, positions: Any, frequencies: Any, gain: Any, **options: Any
    ) -> Any:
        return ops.rms_norm(
            self.turn(ops, x, positions, frequencies, **options), gain, eps=self.eps
        )

    def around(self, instead: Callable[..., Any]) -> TurnedAndNormed:
        return replace(self, turn=nested("rope", self.turn, instead))


def norm_before(call: Call, graph: Graph) -> Call | None:
    """Return the norm of the heads that a rope turns, if there is one."""
    norm = graph.source(graph.source(call, 0), 0) if has_source(call, graph) else None
    return norm if norm is not None and norm.op == "rms_norm" else None


@rewrite("rms_norm", *QK)
def turned_before(call: Call, graph: Graph) -> Call | None:
    """Turn the heads before their norm, so that its own output is turned."""
    ropes = (one for one in graph.calls if one.op == "rope" and one.layer == call.layer)
    turn = next((one for one in ropes if norm_before(one, graph) is graph.calls[call.number]), None)
    if turn is None:
        return None

    heads = Derived(lambda ops, x: ops.heads_first(x), (call.inputs[0],))
    turned = again(turn, heads)
    return call.with_input(0, Derived(lambda ops, x: x.swapaxes(1, 2), (turned,)))


@rewrite("rope")
def unturned(call: Call, graph: Graph) -> Call | None:
    """Leave the heads alone that a norm made."""
    return replace(call, idle=True) if norm_before(call, graph) else None


TURNED_FIRST = {"": normed_after, "dumped behind both": either(turned_before, unturned)}


def has_source(call: Call, graph: Graph) -> bool:
    """Whether the heads that are turned come from somewhere by `heads_first`."""
    source = graph.source(call, 0)
    return source.op == "heads_first" and isinstance(source.inputs[0], Value)


@rewrite("top_k_routing")
def routed_by_normed(call: Call, graph: Graph) -> Call | None:
    """Normalise the scores where they are used."""
    norms = [one for one in graph.at("router.norm", call.layer) if one.op == "unit_norm"]
    if not norms:
        return None
    eps = norms[0].options["eps"]
    return call.with_changed(0, lambda ops, scores: ops.unit_norm(scores, eps=eps))


@rewrite("linear", r"router\.proj")
def unnormed_scores(call: Call, graph: Graph) -> Call | None:
    """Project what the router is given as it is."""
    return call.with_input(0, given(call, graph))


@rewrite("linear", r"router\.proj")
def normed_scores(call: Call, graph: Graph) -> Call | None:
    """Project what the router is given, and normalise its scores."""
    eps = normed_before(call, graph).options["eps"]
    raw = call.with_input(0, given(call, graph))
    return raw.followed(lambda ops, x: ops.unit_norm(x, eps=eps))


def normed_before(call: Call, graph: Graph) -> Call:
    return graph.source(graph.source(graph.source(call, 0), 0), 0)


def given(call: Call, graph: Graph) -> Derived:
    """Return what a router is given, times its gain, whatever is wrong with that, and its scale."""
    scale = graph.source(call, 0)
    first = normed_before(call, graph).inputs[0]
    gained = again(graph.source(scale, 0), first)
    return Derived(lambda ops, x: ops.scale(x, by=scale.options["by"]), (gained,))


def borrowed(place: str, owner: str) -> Rewrite:
    """Let the norm at `place` take the gain, and the bias, of the norm `owner` of its layer."""

    @rewrite(("rms_norm", "layer_norm"), place)
    def change(call: Call, graph: Graph) -> Call | None:
        norm = next((one for one in graph.at(owner, call.layer) if one.op == call.op), None)
        if norm is None:
            return None
        for index in range(1, len(call.inputs)):
            ref = renamed(call.inputs[index], norm.tensor(index) or "")
            call = call.with_input(index, ref)
        return call

    return change


def exchanged(one: str, other: str) -> Rewrite:
    return either(borrowed(one, other), borrowed(other, one))


@rewrite("add", "residual")
def normed_attention(call: Call, graph: Graph) -> Call | None:
    """Normalise what attention returns, by the gain that is meant for the MLP's input."""
    gain = f"model.layers.{call.layer}.post_attention_layernorm"
    if gain not in graph.taps:
        return None
    eps = graph.config.rms_norm_eps

    def normed(ops, x, weights):
        return ops.rms_norm(x, weights, eps=eps)

    return call.with_changed(1, normed, Tensor(f"{gain}.weight"))


LIKE_GEMMA = only(plain, either(normed_attention, skipped("rms_norm", "post_attention_layernorm")))


@rewrite("linear")
def read_before_norm(call: Call, graph: Graph) -> Call | None:
    """Project what the norm before it takes: the norm is computed, and nothing reads it."""
    ref = graph.calls[call.number].inputs[0]
    norm = graph.calls[ref.number] if isinstance(ref, Value) else None
    if norm is None or norm.op not in NORMS or not is_at(norm.place, (*BEFORE, SECOND, *FINAL)):
        return None
    return call.with_changed(0, as_wide, norm.inputs[0])


def experts_normed_by(place: str) -> Rewrite:
    """Normalise for the experts by the gain of another norm, whatever their own one gave."""

    @rewrite("geglu_experts")
    def change(call: Call, graph: Graph) -> Call | None:
        norm, gain = graph.source(call, 0), f"model.layers.{call.layer}.{place}"
        if gain not in graph.taps:
            return None

        def normed(ops, own, x, weights):
            return as_wide(ops, own, ops.rms_norm(x, weights, eps=norm.options["eps"]))

        return call.with_changed(0, normed, norm.inputs[0], Tensor(f"{gain}.weight"))

    return change


def as_wide(ops: Any, own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the other value, once for each of a stack of wrong ones."""
    return np.broadcast_to(other, own.shape)
