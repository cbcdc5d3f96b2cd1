"""Other ways to choose experts and to weigh them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Conflict, Graph
from lockstep.parity.graph.call import EXPERTS
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.ops.geglu import geglu
from lockstep.reference.ops.swiglu import swiglu
from lockstep.reference.precision import accumulator, dtype_named, rounded

ROUTING = "top_k_routing"
GATED = {"experts": swiglu, "geglu_experts": geglu}  # what is inside of them

Choice = Callable[[np.ndarray, int], np.ndarray]  # of probabilities: the ids of so many experts
Weights = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of logits and probabilities
Shares = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of weights and who has them, best first


def best(probs: np.ndarray, per_token: int) -> np.ndarray:
    return np.argsort(-probs, axis=-1, kind="stable")[..., :per_token]


def worst(probs: np.ndarray, per_token: int) -> np.ndarray:
    return np.argsort(probs, axis=-1, kind="stable")[..., :per_token]


def next_best(lost: int) -> Choice:
    """Take the one that just misses in the place of one that makes it, `lost` from the last.

    Raises: ValueError if none misses, or too few make it.
    """

    def chosen(probs: np.ndarray, per_token: int) -> np.ndarray:
        if not lost < per_token < probs.shape[-1]:
            raise ValueError(f"{per_token} of {probs.shape[-1]} experts, and {lost} from the last")
        return np.delete(best(probs, per_token + 1), per_token - 1 - lost, axis=-1)

    return chosen


def probabilities(logits: np.ndarray, probs: np.ndarray) -> np.ndarray:
    return probs


def as_they_are(logits: np.ndarray, probs: np.ndarray) -> np.ndarray:
    return logits


def as_shared(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights


def backwards(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights[..., ::-1]


def by_id(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Give the largest weight to the lowest id, the next one to the next."""
    rank = np.argsort(np.argsort(chosen, axis=-1), axis=-1)
    return np.take_along_axis(weights, rank, axis=-1)


def softmax(wide: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    powers = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def over_tokens(wide: np.ndarray) -> np.ndarray:
    """Share each expert out among all tokens."""
    return softmax(wide, (0, 1))


def sorted_by_id(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Put the weights in the order of their ids, and leave the experts in theirs."""
    return np.take_along_axis(weights, np.argsort(chosen, axis=-1), axis=-1)


def shared_anew(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return softmax(weights)


def without_last(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights * (np.arange(weights.shape[-1]) < weights.shape[-1] - 1)


def first_for_all(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.broadcast_to(weights[..., :1], weights.shape)


def highest_id_alone(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights * (chosen == chosen.max(axis=-1, keepdims=True))


def lowest_id_alone(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights * (chosen == chosen.min(axis=-1, keepdims=True))


def first_alone(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights * (np.arange(weights.shape[-1]) == 0)


def last_alone(weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return weights * (np.arange(weights.shape[-1]) == weights.shape[-1] - 1)


def alike(*, in_all: bool) -> Shares:
    """Let each of the chosen count alike: as 1, or as one of so many."""
    return lambda weights, chosen: np.ones_like(weights) / (weights.shape[-1] if in_all else 1)


@dataclass(frozen=True)
class Routing:
    """The steps of a routing, computed wide and rounded as the right one is, if at all: which
    probabilities, which experts, by which weights, what is added to their sum, and who gets which
    of the shares. Not `divided`, they stay as they are.
    """

    score: Callable[[np.ndarray], np.ndarray] = softmax
    choose: Choice = best
    weigh: Weights = probabilities
    over: tuple[int, ...] = (-1,)
    epsilon: float = 0.0
    divided: bool = True
    share: Shares = as_shared

    def __call__(
        self, ops: Any, logits: np.ndarray, *, per_token: int, normalize: bool
    ) -> np.ndarray:
        wide = logits.astype(accumulator(logits.dtype))
        with np.errstate(all="ignore"):
            probs = self.score(wide)
            chosen = self.choose(probs, per_token)
            weights = np.take_along_axis(self.weigh(wide, probs), chosen, axis=-1)
            if normalize and self.divided:
                weights = weights / (weights.sum(axis=self.over, keepdims=True) + self.epsilon)
            weights = self.share(weights, chosen)
        out = np.zeros_like(probs)
        np.put_along_axis(out, chosen, weights, axis=-1)
        right = ops.top_k_routing(logits[..., :1, :], per_token=per_token, normalize=normalize)
        return rounded(out, right.dtype)


RIGHT = Routing()


def routed(**steps: Any) -> Rewrite:
    """Take some steps otherwise. Wrong steps of other bugs stay; of one step, only one is wrong."""

    def change(call: Call, graph: Graph) -> Call:
        before = call.instead or RIGHT
        if not isinstance(before, Routing):  # it has no steps
            raise Conflict(call.place)
        if any(getattr(before, step) != getattr(RIGHT, step) for step in steps):
            raise Conflict(call.place)
        return replace(call, instead=replace(before, **steps))

    return rewrite(ROUTING)(change)


def so_many(wrong: Callable[[int], int]) -> Rewrite:
    """Choose so many of the best for as many as are right, if there are so many experts."""

    def change(call: Call, graph: Graph) -> Call | None:
        if getattr(call.instead, "choose", best) is not best:  # it may need as many as are right
            raise Conflict(call.place)
        right, experts = call.options["per_token"], graph.shapes[call.number][-1]
        other = wrong(right)
        is_another = other != right and 0 < other <= experts
        return call.with_options(per_token=other) if is_another else None

    return rewrite(ROUTING)(change)


def rounded_through(name: str) -> Callable[[Any, np.ndarray], np.ndarray]:
    """Return the change that rounds to a dtype and goes on in the right one."""

    def change(ops: Any, x: np.ndarray) -> np.ndarray:
        return rounded(rounded(x, dtype_named(name)), x.dtype)

    return change


def rounded_choice(name: str) -> Choice:
    """Choose among probabilities that were rounded, of which some are equal."""
    return lambda probs, per_token: best(probs.astype(dtype_named(name)), per_token)


@rewrite(EXPERTS)
def weighed_before(call: Call, graph: Graph) -> Call:
    """Give each expert its token times its weight, and add what they say as it is.

    Whatever else was wrong with the experts stays so: they are run one at a time.
    """
    inner = call.instead or plain(call.op)

    def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        total = np.zeros(x.shape, accumulator(x.dtype))
        for weights, alone in one_by_one(routing):
            weighed = x * weights[..., None].astype(x.dtype)
            said = inner(ops, weighed, alone, *stacks, per_token=per_token)
            total += said.astype(total.dtype)
        return rounded(total, x.dtype)

    return replace(call, instead=wrong)


def one_by_one(routing: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield of each expert that some token chose its weights, and a routing by 1 to it alone."""
    for expert in np.flatnonzero((routing != 0).reshape(-1, routing.shape[-1]).any(axis=0)):
        alone = np.zeros_like(routing)
        alone[..., expert] = routing[..., expert] != 0
        yield routing[..., expert], alone


@rewrite(EXPERTS)
def weighed_at_gate(call: Call, graph: Graph) -> Call:
    """Multiply what the gate gives by the weight, before its activation, and no more.

    The experts are put together again for it, so that nothing else can be wrong inside of them.
    """
    if call.instead is not None:
        raise Conflict(call.place)

    def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        gate, up, down = stacks
        total = np.zeros(x.shape, accumulator(x.dtype))
        for weights, alone in one_by_one(routing):
            said = weighted_experts(
                x, alone, gate, up, down, per_token=per_token, linear=ops.linear,
                gated=weighing(GATED[call.op], weights),
            )  # fmt: skip
            total += said.astype(total.dtype)
        return rounded(total, x.dtype)

    return replace(call, instead=wrong)


def weighing(gated: Callable[..., np.ndarray], weights: np.ndarray) -> Callable[..., np.ndarray]:
    """Return the gate of the tokens that have a weight, each multiplied by it."""
    of_chosen = weights[weights != 0][:, None]
    return lambda gate, up: gated(gate * of_chosen.astype(gate.dtype), up)


def plain(name: str) -> Callable[..., np.ndarray]:
    return lambda ops, *inputs, **options: getattr(ops, name)(*inputs, **options)
