"""Other ways to choose experts and to weigh them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, dtype_named, rounded

EXPERTS = ("experts", "geglu_experts")

Choice = Callable[[np.ndarray, int], np.ndarray]  # of probabilities: the ids of so many experts
Weights = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of logits and probabilities


def best(probs: np.ndarray, per_token: int) -> np.ndarray:
    return np.argsort(-probs, axis=-1, kind="stable")[..., :per_token]


def worst(probs: np.ndarray, per_token: int) -> np.ndarray:
    return np.argsort(probs, axis=-1, kind="stable")[..., :per_token]


def next_best(lost: int) -> Choice:
    """Take the one that just misses in the place of one that makes it, `lost` from the last."""

    def chosen(probs: np.ndarray, per_token: int) -> np.ndarray:
        return np.delete(best(probs, per_token + 1), per_token - 1 - lost, axis=-1)

    return chosen


def probabilities(logits: np.ndarray, probs: np.ndarray) -> np.ndarray:
    return probs


def routed(choose: Choice = best, weigh: Weights = probabilities) -> Callable[..., np.ndarray]:
    """Return a routing that chooses or weighs otherwise, computed wide and rounded once."""

    def wrong(ops: Any, logits: np.ndarray, *, per_token: int, normalize: bool) -> np.ndarray:
        wide = logits.astype(accumulator(logits.dtype))
        with np.errstate(all="ignore"):
            probs = softmax(wide)
            chosen = choose(probs, per_token)
            weights = np.take_along_axis(weigh(wide, probs), chosen, axis=-1)
            if normalize:
                weights = weights / weights.sum(axis=-1, keepdims=True)
        out = np.zeros_like(probs)
        np.put_along_axis(out, chosen, weights, axis=-1)
        return rounded(out, logits.dtype)

    return wrong


def raw(ops: Any, logits: np.ndarray, *, per_token: int, normalize: bool) -> np.ndarray:
    """Weigh the chosen experts by their logits as they are."""
    weigh = routed(weigh=lambda logits, probs: logits)
    return weigh(ops, logits, per_token=per_token, normalize=False)


def softmax(wide: np.ndarray) -> np.ndarray:
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rounded_through(name: str) -> Callable[[Any, np.ndarray], np.ndarray]:
    """Return the change that rounds to a dtype and goes on in the right one."""

    def change(ops: Any, x: np.ndarray) -> np.ndarray:
        return rounded(rounded(x, dtype_named(name)), x.dtype)

    return change


def rounded_choice(name: str) -> Choice:
    """Choose among probabilities that were rounded, of which some are equal."""
    return lambda probs, per_token: best(probs.astype(dtype_named(name)), per_token)


def with_epsilon(eps: float) -> Callable[..., np.ndarray]:
    """Return the routing that divides by the sum and a little more."""

    def wrong(ops: Any, logits: np.ndarray, *, per_token: int, normalize: bool) -> np.ndarray:
        right = ops.top_k_routing(logits, per_token=per_token, normalize=normalize)
        total = np.sort(softmax(logits.astype(np.float64)), axis=-1)[..., -per_token:]
        total = total.sum(axis=-1, keepdims=True)
        wide = right.astype(np.float64) * (total / (total + eps))
        return rounded(np.where(right == 0, 0, wide), right.dtype)  # not chosen, even by a NaN

    return wrong


@rewrite(EXPERTS)
def weighed_before(call: Call, graph: Graph) -> Call:
    """Give each expert its token times its weight, and add what they say as it is.

    Whatever else was wrong with the experts stays so: they are run one at a time.
    """
    inner = call.instead or plain(call.op)

    def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        total = np.zeros(x.shape, accumulator(x.dtype))
        for expert in np.flatnonzero((routing != 0).reshape(-1, routing.shape[-1]).any(axis=0)):
            weight = routing[..., expert, None]
            alone = np.zeros_like(routing)
            alone[..., expert] = routing[..., expert] != 0
            said = inner(ops, x * weight.astype(x.dtype), alone, *stacks, per_token=per_token)
            total += said.astype(total.dtype)
        return rounded(total, x.dtype)

    return replace(call, instead=wrong)


def plain(name: str) -> Callable[..., np.ndarray]:
    return lambda ops, *inputs, **options: getattr(ops, name)(*inputs, **options)


def one_fewer() -> Rewrite:
    return rewrite("top_k_routing")(
        lambda call, graph: call.with_options(per_token=call.options["per_token"] - 1)
        if call.options["per_token"] > 1 else None
    )  # fmt: skip
