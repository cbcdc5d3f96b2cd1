"""Routers and experts: equal scores, all experts, experts with no token, a router of NaN."""

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import COUNTS, NAN, Draw, Family
from lockstep.parity.conformance.values import literal, type_said
from lockstep.reference import ops

EXPERTS_OF = (1, 2, 3, 4, 8, 16, 33)
FILLS = ("whole", "normal", "zeros", "constant")


def top_k_routing(draw: Draw) -> dict[str, Given]:
    experts = draw.one_of(EXPERTS_OF)
    per_token = draw.whole(1, experts)
    shape = draw.one_of((1, 2)), draw.one_of(COUNTS), experts
    return {
        "logits": draw.array(shape, fills=FILLS, spikes=(1e4, -1e4, -88.8, -0.0)),
        "per_token": Given(per_token, str(per_token)),
        "normalize": draw.option((True, False)),
    }


def experts(draw: Draw) -> dict[str, Given]:
    some, width, inner = draw.one_of((1, 2, 3, 4)), draw.one_of((1, 2, 8, 32, 33)), draw.one_of(
        (1, 2, 8, 32, 33)
    )  # fmt: skip
    batch, count = draw.one_of((1, 2)), draw.one_of((1, 2, 3, 0, 8, 9, 33))
    per_token, seed = draw.whole(1, some), draw.whole(0, 99)
    fills = ("normal", "whole")
    return {
        "x": draw.array((batch, count, width), fills=fills, spikes=NAN),
        "routing": routing((batch, count, some), per_token, seed, draw.dtype),
        "gate": draw.array((some, inner, width), fills=fills),
        "up": draw.array((some, inner, width), fills=fills),
        "down": draw.array((some, width, inner), fills=fills),
        "per_token": Given(per_token, str(per_token)),
    }


def routing(shape: tuple[int, ...], per_token: int, seed: int, dtype: np.dtype) -> Given:
    """Return what a router would say of logits by a seed."""
    logits = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    value = ops.top_k_routing(logits, per_token=per_token, normalize=True)
    if value.size <= 12:
        return Given(value, literal(value))
    made = f"np.random.default_rng({seed}).standard_normal({shape}).astype({type_said(dtype)})"
    return Given(value, f"top_k_routing({made}, per_token={per_token}, normalize=True)")


EXPERTS: Family = {
    "top_k_routing": top_k_routing,
    "experts": experts,
    "geglu_experts": experts,
}
