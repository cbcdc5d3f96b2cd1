"""The seven bugs that a port of Gemma 4 had, planted in the cpu backend one upon the other.

Each was found only after the one before it was fixed; see docs/parity/explain.md. Nothing of the
catalogue is used here: a bug is a namespace with one operation replaced, as a port would have it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

Planted = dict[str, Callable[..., Any]]  # operations that stand in the places of right ones


def no_embed_scale(ops: Any) -> Planted:
    """Forget to multiply the embedding by the root of the width; the router's factor is below 1."""
    return {"scale": lambda x, *, by: x if by > 1 else ops.scale(x, by=by)}


def silu(ops: Any) -> Planted:
    """Gate with the activation of other families."""
    return {"geglu": ops.swiglu, "geglu_experts": ops.experts}


def scaled_scores(ops: Any) -> Planted:
    """Divide the scores by the root of the head's width, as other families do."""

    def attention(queries: Any, *rest: Any, scale: float, masked_row: str) -> Any:
        scale = queries.shape[-1] ** -0.5
        return ops.attention(queries, *rest, scale=scale, masked_row=masked_row)

    return {"attention": attention}


def plain_rope(ops: Any) -> Planted:
    """Turn all of a head on the full layers, not the part that should."""

    def rope_frequencies(*, theta: float, dims: int, partial_rotary_factor: float) -> Any:
        return ops.rope_frequencies(theta=theta, dims=dims)

    return {"rope_frequencies_proportional": rope_frequencies}


def lowest_experts(ops: Any) -> Planted:
    """Take the wrong end of a sorted list of experts."""

    def top_k_routing(logits: Any, *, per_token: int, normalize: bool) -> Any:
        probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        places = probs.argsort(axis=-1, kind="stable").argsort(axis=-1)
        weights = np.where(places < per_token, probs, 0)
        return weights / weights.sum(axis=-1, keepdims=True)

    return {"top_k_routing": top_k_routing}


def no_softcap(ops: Any) -> Planted:
    """Hand out the logits as the head gives them."""
    return {"softcap": lambda x, *, cap: x}


def no_layer_scalar(ops: Any) -> Planted:
    """Forget the one number by which a layer's result is multiplied."""
    return {"gain": lambda x, weights: x if weights.shape == (1,) else ops.gain(x, weights)}


@dataclass(frozen=True)
class Bug:
    """What the port does, what is right, the catalogue's name for it, and what plants it."""

    wrong: str
    right: str
    id: str
    plant: Callable[[Any], Planted]


# In the order in which they were found by hand.
BUGS = (
    Bug("no embedding scale", "the embedding scale", "embed-scale-missing", no_embed_scale),
    Bug("SiLU for GELU", "GELU", "act-silu-vs-gelu", silu),
    Bug("scores over sqrt(d)", "the scale of scores", "attn-scale-should-be-one", scaled_scores),
    Bug(
        "plain RoPE on full layers",
        "the full layers' RoPE",
        "rope-proportional-missing",
        plain_rope,
    ),
    Bug("lowest experts chosen", "the choice of experts", "moe-selects-lowest", lowest_experts),
    Bug("no softcap", "the softcap", "final-softcap-missing", no_softcap),
    Bug("no layer scalar", "the layer scalar", "layer-scalar-missing", no_layer_scalar),
)


def planted(ops: Any, bugs: Iterable[Bug]) -> Any:
    """Return `ops` with these bugs in it. No two of them replace the same operation."""
    wrong = {name: getattr(ops, name) for name in ops.__all__}
    for bug in bugs:
        wrong |= bug.plant(ops)
    return SimpleNamespace(**wrong)
