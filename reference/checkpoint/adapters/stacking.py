"""Adapters of single experts, as older files have them, put together to one of their stack."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lockstep.reference.checkpoint.adapters.adapter import Adapter


def stacked(experts: Mapping[int, Adapter], shape: tuple[int, ...]) -> Adapter:
    """Return one adapter for a stack of this shape; experts that are not named keep their matrix.

    Ranks may differ, smaller ones are filled up with zeros. So may factors: each goes into its b,
    and the factor of the whole is 1, unless all are alike.
    """
    count, outputs, inputs = shape
    rank = max(len(one.a) for one in experts.values())
    factors = {one.scale for one in experts.values()}
    scale = factors.pop() if len(factors) == 1 else 1.0
    a = np.zeros((count, rank, inputs), np.float32)
    b = np.zeros((count, outputs, rank), np.float32)
    for expert, one in experts.items():
        own = len(one.a)
        a[expert, :own] = one.a
        b[expert, :, :own] = one.b * np.float32(one.scale / scale)
    return Adapter(a, b, scale, None)
