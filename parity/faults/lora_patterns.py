"""Adapters whose own rank, or own alpha, is not looked at: all get what most of them have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from lockstep.parity.faults.adapter_layers import FACTORS, Adapter, placed_adapters, rank_of
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph

DIGITS = 9  # in which two alphas are the same


def as_most_have(*, alpha: bool) -> Rewrite:
    """Scale by the usual alpha over a module's own rank, or by its own alpha over the usual one."""

    @rewrite(FACTORS)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        adapters = [one for one in placed_adapters(graph).adapters.values() if not one.is_room]
        if not adapters:
            return None
        rank, scale = rank_of(call), call.options["scale"]
        usual = usual_of(map(alpha_of if alpha else own_rank, adapters))
        new = usual / rank if alpha else scale * rank / usual
        return None if math.isclose(new, scale) else call.with_options(scale=new)

    return rewritten


def usual_of(values: Iterable[float]) -> float:
    ((value, _),) = Counter(float(f"{one:.{DIGITS}g}") for one in values).most_common(1)
    return value


def own_rank(adapter: Adapter) -> int:
    return adapter.a.value.shape[0]


def alpha_of(adapter: Adapter) -> float:
    return adapter.scale * own_rank(adapter)
