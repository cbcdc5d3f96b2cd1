"""Which tokens a router may send elsewhere by rounding alone: they prove nothing about a port."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import Value

NEAR = 12.0  # how often the noise of its logits a choice must be away from the next, to be sure


def unsure_tokens(
    target: int,
    routers: Sequence[Call],
    values: Callable[[int], tuple[np.ndarray, Sequence[np.ndarray]]],
    graph: Graph,
    chosen: Callable[[int], np.ndarray | None] = lambda router: None,
) -> np.ndarray | None:
    """Return which tokens (B, L) depend on a choice that rounding may turn; None if none does.

    `values` gives the float64 value of a number and what the legal ways make of it. `chosen` says
    which experts (B, L, X) a router takes, None if those of the highest scores. A token that one
    layer sent elsewhere is seen by all later ones in the layers after it.
    """
    found: np.ndarray | None = None
    for router in routers:
        ref = router.inputs[0]
        if not isinstance(ref, Value):
            continue
        centre, spread = values(ref.number)
        taken = chosen(router.number)
        if taken is None:
            unsure = near_choice(centre, spread, router.options["per_token"])
        else:
            unsure = near_border(centre, spread, taken)
        if graph.calls[target].layer != router.layer:
            unsure = np.maximum.accumulate(unsure, axis=-1)
        found = unsure if found is None else found | unsure
    return found if found is not None and found.any() else None


def near_choice(centre: np.ndarray, spread: Sequence[np.ndarray], per_token: int) -> np.ndarray:
    """Return where the last expert chosen and the first one left out are within the noise."""
    if per_token >= centre.shape[-1]:
        return np.zeros(centre.shape[:-1], bool)
    falling = -np.sort(-centre, axis=-1)
    gap = falling[..., per_token - 1] - falling[..., per_token]
    return ~(gap > reach_of_rounding(centre, spread))


def near_border(centre: np.ndarray, spread: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    """Return where an expert that is chosen (B, L, X), by any rule, and the next one that is not
    are within the noise.
    """
    order = np.argsort(-centre, axis=-1, kind="stable")
    falling, taken = (np.take_along_axis(one, order, axis=-1) for one in (centre, chosen))
    near = ~(falling[..., :-1] - falling[..., 1:] > reach_of_rounding(centre, spread)[..., None])
    return (near & (taken[..., :-1] != taken[..., 1:])).any(axis=-1)


def reach_of_rounding(centre: np.ndarray, spread: Sequence[np.ndarray]) -> np.ndarray:
    """Return how far apart the scores of two experts may be for either choice to be legal."""
    moved = [np.abs(way.astype(np.float64) - centre).max(axis=-1) for way in spread]
    return NEAR * np.max(moved, axis=0)


def routers_between(
    target: int, graph: Graph, dumped: Mapping[int, np.ndarray], calls: Sequence[int]
) -> list[Call]:
    """Return the routers of a piece whose choice the port did not dump."""
    return [
        graph.calls[number] for number in calls
        if graph.calls[number].op == "top_k_routing" and number not in dumped and number != target
    ]  # fmt: skip
