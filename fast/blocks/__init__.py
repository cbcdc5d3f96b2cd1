"""The block formats of GGUF, cut into codes and scales on the host or on a device.

Written anew from the layout of the bytes: nothing here comes from `reference/blocks`. What is cut
out is exact; each backend multiplies and adds for itself.
"""

from typing import Any

from lockstep.fast.blocks.groups import Groups
from lockstep.fast.blocks.k_quants import q2_k, q3_k, q4_k, q5_k, q6_k
from lockstep.fast.blocks.levels import iq4_nl, mxfp4
from lockstep.fast.blocks.simple import q4_0, q4_1, q5_0, q5_1, q8_0

CUTS = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}


def cut(blocks: Any, format: str, xp: Any) -> Groups:
    """Cut blocks (N, bytes) of a format into groups; `xp` is the module of their array type."""
    return CUTS[format](blocks, xp)
